// Command provider is a real Pulumi provider for tests: its resources take time, fail, and print secrets on demand.
//
// In a YAML program (the version tells the CLI to use the installed plugin, instead of looking for a newer one):
//
//	resources:
//	  slow:
//	    type: test:index:Sleep
//	    properties:
//	      seconds: 30               # how long create, update and refresh take
//	      deleteSeconds: 0          # how long delete takes
//	      failMessage: no quota     # fail with this message, once the time is over
//	      echo: ${password}         # print this value to the log of the operation, and return it as the output echo
//	      ignoreCancel: false       # continue although the operation is cancelled
//	      journal: /tmp/journal     # append a line "<verb> start" and "<verb> end" or "<verb> aborted" per operation
//	      until: /tmp/released      # once the time is over, wait until this file exists
//	      readyWith: /tmp/ready     # do not wait for this file: while it does not exist, say that the resource takes long
//	      file: /tmp/there          # the file that create and update write, and delete removes, after that
//	      content: hello            # what is in the file; nothing when it is missing
//	    options: {version: 0.1.0}
//
// A refresh returns the current content of the file, and that the resource is gone if the file is gone. To import a file, the ID is any text,
// a colon, and the path of the file.
//
// Function PutProvider of package programs installs the provider where the CLI finds it.
package main

import (
	"context"
	"crypto/rand"
	_ "embed"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/pulumi/pulumi/sdk/v3/go/common/resource"
	"github.com/pulumi/pulumi/sdk/v3/go/common/resource/plugin"
	"github.com/pulumi/pulumi/sdk/v3/go/common/util/rpcutil"
	pulumirpc "github.com/pulumi/pulumi/sdk/v3/proto/go"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/structpb"
)

//go:embed schema.json
var schema string

// provider implements test:index:Sleep.
type provider struct {
	pulumirpc.UnimplementedResourceProviderServer
	engine pulumirpc.EngineClient
	// cancelled is closed when the engine cancels the operation.
	cancelled  chan struct{}
	cancelOnce sync.Once
}

func newProvider() *provider {
	return &provider{cancelled: make(chan struct{})}
}

// connect opens the connection for messages to the engine.
func (p *provider) connect(address string) error {
	connection, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return fmt.Errorf("connect to the engine at %s: %w", address, err)
	}
	p.engine = pulumirpc.NewEngineClient(connection)
	return nil
}

func (p *provider) Attach(_ context.Context, request *pulumirpc.PluginAttach) (*emptypb.Empty, error) {
	return &emptypb.Empty{}, p.connect(request.GetAddress())
}

func (p *provider) GetPluginInfo(context.Context, *emptypb.Empty) (*pulumirpc.PluginInfo, error) {
	return &pulumirpc.PluginInfo{Version: "0.1.0"}, nil
}

func (p *provider) GetSchema(context.Context, *pulumirpc.GetSchemaRequest) (*pulumirpc.GetSchemaResponse, error) {
	return &pulumirpc.GetSchemaResponse{Schema: schema}, nil
}

func (p *provider) CheckConfig(_ context.Context, request *pulumirpc.CheckRequest) (*pulumirpc.CheckResponse, error) {
	return &pulumirpc.CheckResponse{Inputs: request.GetNews()}, nil
}

// DiffConfig compares the inputs as Diff does.
func (p *provider) DiffConfig(ctx context.Context, request *pulumirpc.DiffRequest) (*pulumirpc.DiffResponse, error) {
	return p.Diff(ctx, request)
}

func (p *provider) Configure(context.Context, *pulumirpc.ConfigureRequest) (*pulumirpc.ConfigureResponse, error) {
	// The engine keeps track of secret values.
	return &pulumirpc.ConfigureResponse{}, nil
}

// Cancel cancels running operations.
func (p *provider) Cancel(context.Context, *emptypb.Empty) (*emptypb.Empty, error) {
	p.cancelOnce.Do(func() { close(p.cancelled) })
	return &emptypb.Empty{}, nil
}

func (p *provider) Check(_ context.Context, request *pulumirpc.CheckRequest) (*pulumirpc.CheckResponse, error) {
	return &pulumirpc.CheckResponse{Inputs: request.GetNews()}, nil
}

// Diff compares the inputs. No change needs a replacement.
func (p *provider) Diff(_ context.Context, request *pulumirpc.DiffRequest) (*pulumirpc.DiffResponse, error) {
	olds, err := properties(request.GetOldInputs())
	if err != nil {
		return nil, err
	}
	news, err := properties(request.GetNews())
	if err != nil {
		return nil, err
	}
	response := &pulumirpc.DiffResponse{Changes: pulumirpc.DiffResponse_DIFF_NONE}
	if diff := olds.Diff(news); diff != nil {
		response.Changes = pulumirpc.DiffResponse_DIFF_SOME
		for _, key := range diff.ChangedKeys() {
			response.Diffs = append(response.Diffs, string(key))
		}
	}
	return response, nil
}

func (p *provider) Create(ctx context.Context, request *pulumirpc.CreateRequest) (*pulumirpc.CreateResponse, error) {
	if request.GetPreview() {
		return &pulumirpc.CreateResponse{Properties: request.GetProperties()}, nil
	}
	if err := p.work(ctx, "create", request.GetUrn(), "seconds", request.GetProperties()); err != nil {
		return nil, err
	}
	return &pulumirpc.CreateResponse{Id: rand.Text(), Properties: request.GetProperties()}, nil
}

func (p *provider) Update(ctx context.Context, request *pulumirpc.UpdateRequest) (*pulumirpc.UpdateResponse, error) {
	if request.GetPreview() {
		return &pulumirpc.UpdateResponse{Properties: request.GetNews()}, nil
	}
	if err := p.work(ctx, "update", request.GetUrn(), "seconds", request.GetNews()); err != nil {
		return nil, err
	}
	return &pulumirpc.UpdateResponse{Properties: request.GetNews()}, nil
}

func (p *provider) Read(ctx context.Context, request *pulumirpc.ReadRequest) (*pulumirpc.ReadResponse, error) {
	if err := p.work(ctx, "read", request.GetUrn(), "seconds", request.GetInputs()); err != nil {
		return nil, err
	}
	return readFile(request)
}

// readFile returns the current state of the file. If the file is gone, the resource is gone.
func readFile(request *pulumirpc.ReadRequest) (*pulumirpc.ReadResponse, error) {
	response := &pulumirpc.ReadResponse{Id: request.GetId(), Properties: request.GetProperties(), Inputs: request.GetInputs()}
	if _, imported, ok := strings.Cut(request.GetId(), ":"); ok && len(request.GetInputs().GetFields()) == 0 {
		fields := map[string]*structpb.Value{"file": structpb.NewStringValue(imported), "content": structpb.NewStringValue("")}
		response.Inputs, response.Properties = &structpb.Struct{Fields: fields}, &structpb.Struct{Fields: maps.Clone(fields)}
	}
	path := response.GetInputs().GetFields()["file"].GetStringValue()
	if path == "" {
		return response, nil
	}
	content, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return &pulumirpc.ReadResponse{}, nil
	case err != nil:
		return nil, err
	case string(content) == response.GetInputs().GetFields()["content"].GetStringValue():
		return response, nil
	}
	for _, properties := range []*structpb.Struct{response.GetProperties(), response.GetInputs()} {
		properties.Fields["content"] = structpb.NewStringValue(string(content))
	}
	return response, nil
}

func (p *provider) Delete(ctx context.Context, request *pulumirpc.DeleteRequest) (*emptypb.Empty, error) {
	return &emptypb.Empty{}, p.work(ctx, "delete", request.GetUrn(), "deleteSeconds", request.GetProperties())
}

// work performs the operation as the properties describe it.
func (p *provider) work(ctx context.Context, verb, urn, duration string, wanted *structpb.Struct) error {
	inputs, err := properties(wanted)
	if err != nil {
		return err
	}
	if err := note(inputs, verb+" start"); err != nil {
		return err
	}
	if echo := inputs["echo"]; echo.IsString() && p.engine != nil {
		message := &pulumirpc.LogRequest{Severity: pulumirpc.LogSeverity_INFO, Urn: urn, Message: "echo: " + echo.StringValue()}
		if _, err := p.engine.Log(ctx, message); err != nil {
			return err
		}
	}
	cancelled := p.cancelled
	if ignore := inputs["ignoreCancel"]; ignore.IsBool() && ignore.BoolValue() {
		cancelled = nil
	}
	var seconds float64
	if value := inputs[resource.PropertyKey(duration)]; value.IsNumber() {
		seconds = value.NumberValue()
	}
	for wait := time.Duration(seconds * float64(time.Second)); wait >= 0; wait = untilFile(inputs) {
		select {
		case <-time.After(wait):
		case <-cancelled:
			return errors.Join(status.Error(codes.Aborted, verb+" was cancelled"), note(inputs, verb+" aborted"))
		}
	}
	if message := inputs["failMessage"]; message.IsString() && verb != "delete" {
		return status.Error(codes.Unknown, message.StringValue())
	}
	if path := inputs["readyWith"]; path.IsString() && (verb == "create" || verb == "update") {
		if _, err := os.Stat(path.StringValue()); err != nil {
			awaits, err := status.New(codes.Unknown, "takes long").WithDetails(&pulumirpc.ErrorResourceAwaitFailed{})
			return errors.Join(awaits.Err(), err)
		}
	}
	if err := manage(verb, inputs); err != nil {
		return err
	}
	return note(inputs, verb+" end")
}

// untilFile returns how long to wait before the next check for the file in the property until. It is negative if the file exists or the
// property is not set.
func untilFile(inputs resource.PropertyMap) time.Duration {
	path := inputs["until"]
	if !path.IsString() {
		return -1
	}
	if _, err := os.Stat(path.StringValue()); err == nil {
		return -1
	}
	return 50 * time.Millisecond
}

// manage writes or removes the file, as the operation requires.
func manage(verb string, inputs resource.PropertyMap) error {
	path := inputs["file"]
	if !path.IsString() {
		return nil
	}
	switch verb {
	case "create", "update":
		var content string
		if wanted := inputs["content"]; wanted.IsString() {
			content = wanted.StringValue()
		}
		return os.WriteFile(path.StringValue(), []byte(content), 0o600)
	case "delete":
		if err := os.Remove(path.StringValue()); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// note appends a line to the journal.
func note(inputs resource.PropertyMap, line string) error {
	path := inputs["journal"]
	if !path.IsString() {
		return nil
	}
	journal, err := os.OpenFile(path.StringValue(), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(journal, line)
	return errors.Join(err, journal.Close())
}

func properties(encoded *structpb.Struct) (resource.PropertyMap, error) {
	return plugin.UnmarshalProperties(encoded, plugin.MarshalOptions{KeepUnknowns: true})
}

// healthInterval is how often the provider checks that the engine is still there; real providers do the same.
const healthInterval = 5 * time.Minute

func main() {
	if err := serve(); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

// serve serves the engine until the engine ends. It prints the port to stdout, as every plugin does.
func serve() error {
	provider := newProvider()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	stop := make(chan bool)
	if engine := engineAddress(os.Args[1:]); engine != "" {
		if err := provider.connect(engine); err != nil {
			return err
		}
		// The health check notices within five minutes if the engine was killed.
		if err := rpcutil.Healthcheck(ctx, engine, healthInterval, func() { close(stop) }); err != nil {
			return err
		}
	}
	handle, err := rpcutil.ServeWithOptions(rpcutil.ServeOptions{
		Cancel: stop,
		Init: func(server *grpc.Server) error {
			pulumirpc.RegisterResourceProviderServer(server, provider)
			return nil
		},
	})
	if err != nil {
		return err
	}
	fmt.Println(handle.Port)
	return <-handle.Done
}

// engineAddress returns the last argument that is not a flag, which is the address of the engine.
func engineAddress(args []string) string {
	for _, arg := range slices.Backward(args) {
		if !strings.HasPrefix(arg, "-") {
			return arg
		}
	}
	return ""
}
