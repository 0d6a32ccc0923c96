// Command kubernetes stands in for Pulumi's Kubernetes provider, which is large and takes minutes to build. It supports only
// kubernetes:yaml/v2:ConfigFile with a local file, and applies the objects in the file as the real provider does, but does not wait for
// them. Its version is the version of the provider that config/pulumi requires.
package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/pulumi/pulumi/sdk/v3/go/common/util/rpcutil"
	pulumirpc "github.com/pulumi/pulumi/sdk/v3/proto/go"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/structpb"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stack-controller/stack-controller/tests/tools"
)

//go:embed schema.json
var schema string

// provider implements kubernetes:yaml/v2:ConfigFile.
type provider struct {
	pulumirpc.UnimplementedResourceProviderServer
	cluster client.Client
}

func (p *provider) GetPluginInfo(context.Context, *emptypb.Empty) (*pulumirpc.PluginInfo, error) {
	return &pulumirpc.PluginInfo{Version: tools.KubernetesProviderVersion}, nil
}

func (p *provider) GetSchema(context.Context, *pulumirpc.GetSchemaRequest) (*pulumirpc.GetSchemaResponse, error) {
	return &pulumirpc.GetSchemaResponse{Schema: strings.ReplaceAll(schema, "$VERSION", tools.KubernetesProviderVersion)}, nil
}

func (p *provider) CheckConfig(_ context.Context, request *pulumirpc.CheckRequest) (*pulumirpc.CheckResponse, error) {
	return &pulumirpc.CheckResponse{Inputs: request.GetNews()}, nil
}

func (p *provider) DiffConfig(context.Context, *pulumirpc.DiffRequest) (*pulumirpc.DiffResponse, error) {
	return &pulumirpc.DiffResponse{Changes: pulumirpc.DiffResponse_DIFF_NONE}, nil
}

func (p *provider) Configure(context.Context, *pulumirpc.ConfigureRequest) (*pulumirpc.ConfigureResponse, error) {
	return &pulumirpc.ConfigureResponse{}, nil
}

func (p *provider) Cancel(context.Context, *emptypb.Empty) (*emptypb.Empty, error) {
	return &emptypb.Empty{}, nil
}

func (p *provider) Check(_ context.Context, request *pulumirpc.CheckRequest) (*pulumirpc.CheckResponse, error) {
	return &pulumirpc.CheckResponse{Inputs: request.GetNews()}, nil
}

func (p *provider) Diff(_ context.Context, request *pulumirpc.DiffRequest) (*pulumirpc.DiffResponse, error) {
	if file(request.GetOldInputs()) == file(request.GetNews()) {
		return &pulumirpc.DiffResponse{Changes: pulumirpc.DiffResponse_DIFF_NONE}, nil
	}
	return &pulumirpc.DiffResponse{Changes: pulumirpc.DiffResponse_DIFF_SOME, Diffs: []string{"file"}}, nil
}

func (p *provider) Create(ctx context.Context, request *pulumirpc.CreateRequest) (*pulumirpc.CreateResponse, error) {
	response := &pulumirpc.CreateResponse{Id: "config-file", Properties: request.GetProperties()}
	if request.GetPreview() {
		return response, nil
	}
	return response, p.apply(ctx, file(request.GetProperties()))
}

func (p *provider) Update(ctx context.Context, request *pulumirpc.UpdateRequest) (*pulumirpc.UpdateResponse, error) {
	response := &pulumirpc.UpdateResponse{Properties: request.GetNews()}
	if request.GetPreview() {
		return response, nil
	}
	return response, p.apply(ctx, file(request.GetNews()))
}

func (p *provider) Read(_ context.Context, request *pulumirpc.ReadRequest) (*pulumirpc.ReadResponse, error) {
	return &pulumirpc.ReadResponse{Id: request.GetId(), Properties: request.GetProperties(), Inputs: request.GetInputs()}, nil
}

func (p *provider) Delete(ctx context.Context, request *pulumirpc.DeleteRequest) (*emptypb.Empty, error) {
	return &emptypb.Empty{}, p.remove(ctx, file(request.GetProperties()))
}

func file(properties *structpb.Struct) string {
	return properties.GetFields()["file"].GetStringValue()
}

// apply applies the objects of a file server-side, in their order in the file.
func (p *provider) apply(ctx context.Context, path string) error {
	objects, err := read(path)
	if err != nil {
		return err
	}
	for _, object := range objects {
		err := p.cluster.Apply(ctx, client.ApplyConfigurationFromUnstructured(object), client.FieldOwner("pulumi-kubernetes"), client.ForceOwnership)
		if err != nil {
			return fmt.Errorf("apply the %s %s: %w", object.GetKind(), object.GetName(), err)
		}
	}
	return nil
}

// remove deletes the objects of a file, the last one first.
func (p *provider) remove(ctx context.Context, path string) error {
	objects, err := read(path)
	if err != nil {
		return err
	}
	for _, object := range slices.Backward(objects) {
		if err := client.IgnoreNotFound(p.cluster.Delete(ctx, object)); err != nil {
			return fmt.Errorf("delete the %s %s: %w", object.GetKind(), object.GetName(), err)
		}
	}
	return nil
}

// read returns the objects in a file of YAML documents.
func read(path string) ([]*unstructured.Unstructured, error) {
	content, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read the objects: %w", err)
	}
	defer content.Close()
	var objects []*unstructured.Unstructured
	decoder := yaml.NewYAMLOrJSONDecoder(content, 4096)
	for {
		object := map[string]any{}
		err := decoder.Decode(&object)
		if errors.Is(err, io.EOF) {
			return objects, nil
		}
		if err != nil {
			return nil, fmt.Errorf("read the objects of %s: %w", path, err)
		}
		if len(object) > 0 {
			objects = append(objects, &unstructured.Unstructured{Object: object})
		}
	}
}

// healthInterval is how often the provider checks that the engine is still there.
const healthInterval = time.Minute

func main() {
	if err := serve(); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

// serve serves the engine until the engine ends. It prints the port to stdout, as every plugin does.
func serve() error {
	config, err := ctrl.GetConfig()
	if err != nil {
		return fmt.Errorf("find the cluster: %w", err)
	}
	cluster, err := client.New(config, client.Options{})
	if err != nil {
		return fmt.Errorf("connect to the cluster: %w", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	stop := make(chan bool)
	for _, argument := range os.Args[1:] {
		if strings.HasPrefix(argument, "-") {
			continue
		}
		if err := rpcutil.Healthcheck(ctx, argument, healthInterval, func() { close(stop) }); err != nil {
			return fmt.Errorf("watch the engine: %w", err)
		}
		break
	}
	handle, err := rpcutil.ServeWithOptions(rpcutil.ServeOptions{
		Cancel: stop,
		Init: func(server *grpc.Server) error {
			pulumirpc.RegisterResourceProviderServer(server, &provider{cluster: cluster})
			return nil
		},
	})
	if err != nil {
		return fmt.Errorf("serve: %w", err)
	}
	fmt.Println(handle.Port)
	return <-handle.Done
}
