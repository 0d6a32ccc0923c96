// Command languagehost is a small but real language host for Pulumi: it implements the protocol of language hosts. A program is the file
// outputs.json, an object with the outputs of the stack; a value "config:KEY" stands for the configuration key. The dependencies of a
// program are the lines of requirements.txt, names or URLs: each of them needs a file of its name in the directory venv, which the
// installation creates. Pulumi's language hosts for Go, Node.js and Python work in the same way.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	pulumirpc "github.com/pulumi/pulumi/sdk/v3/proto/go"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/structpb"
)

// fetchTimeout bounds the download of a dependency.
const fetchTimeout = 2 * time.Minute

func main() {
	if err := serve(); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

// serve serves on a port that it prints first, as the CLI expects of its plugins, until the CLI ends the process.
func serve() error {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	server := grpc.NewServer()
	pulumirpc.RegisterLanguageRuntimeServer(server, &host{})
	fmt.Println(listener.Addr().(*net.TCPAddr).Port)
	return server.Serve(listener)
}

// host implements the calls that an operation needs.
type host struct {
	pulumirpc.UnimplementedLanguageRuntimeServer
}

func (*host) GetPluginInfo(context.Context, *emptypb.Empty) (*pulumirpc.PluginInfo, error) {
	return &pulumirpc.PluginInfo{Version: "0.1.0"}, nil
}

func (*host) About(context.Context, *pulumirpc.AboutRequest) (*pulumirpc.AboutResponse, error) {
	return &pulumirpc.AboutResponse{Version: "0.1.0"}, nil
}

func (*host) GetRequiredPackages(context.Context, *pulumirpc.GetRequiredPackagesRequest) (*pulumirpc.GetRequiredPackagesResponse, error) {
	return &pulumirpc.GetRequiredPackagesResponse{}, nil
}

func (*host) GetRequiredPlugins(context.Context, *pulumirpc.GetRequiredPluginsRequest) (*pulumirpc.GetRequiredPluginsResponse, error) {
	return &pulumirpc.GetRequiredPluginsResponse{}, nil
}

// InstallDependencies creates a file for each dependency. The dependency "missing" does not exist, and a dependency that is a URL needs a
// response from its server.
func (*host) InstallDependencies(request *pulumirpc.InstallDependenciesRequest, stream pulumirpc.LanguageRuntime_InstallDependenciesServer) error {
	dir := request.GetInfo().GetProgramDirectory()
	required, err := requirements(dir)
	if err != nil {
		return err
	}
	for _, name := range required {
		if name == "missing" {
			return errors.New("no package is called missing")
		}
		if err := fetch(stream.Context(), name); err != nil {
			return err
		}
		if err := stream.Send(&pulumirpc.InstallDependenciesResponse{Stdout: []byte("installing " + name + "\n")}); err != nil {
			return err
		}
		if err := os.MkdirAll(filepath.Join(dir, "venv"), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, "venv", path.Base(name)), nil, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// fetch requests a dependency that is a URL from its server.
func fetch(ctx context.Context, name string) error {
	if !strings.HasPrefix(name, "http://") {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, name, nil)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("fetch %s: %s", name, response.Status)
	}
	return nil
}

// Run runs the program: it registers the stack with its outputs. The response contains the error of the program, if there is one.
func (*host) Run(ctx context.Context, request *pulumirpc.RunRequest) (*pulumirpc.RunResponse, error) {
	outputs, err := evaluate(request)
	if err != nil {
		return &pulumirpc.RunResponse{Error: err.Error()}, nil
	}
	connection, err := grpc.NewClient(request.GetMonitorAddress(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, fmt.Errorf("connect to the engine: %w", err)
	}
	defer connection.Close()
	monitor := pulumirpc.NewResourceMonitorClient(connection)
	stack, err := monitor.RegisterResource(ctx, &pulumirpc.RegisterResourceRequest{
		Type: "pulumi:pulumi:Stack", Name: request.GetProject() + "-" + request.GetStack(), Object: &structpb.Struct{},
	})
	if err != nil {
		return nil, fmt.Errorf("register the stack: %w", err)
	}
	if _, err := monitor.RegisterResourceOutputs(ctx, &pulumirpc.RegisterResourceOutputsRequest{Urn: stack.GetUrn(), Outputs: outputs}); err != nil {
		return nil, fmt.Errorf("register the outputs: %w", err)
	}
	return &pulumirpc.RunResponse{}, nil
}

// evaluate returns the outputs of the program.
func evaluate(request *pulumirpc.RunRequest) (*structpb.Struct, error) {
	dir := request.GetInfo().GetProgramDirectory()
	required, err := requirements(dir)
	if err != nil {
		return nil, err
	}
	for _, name := range required {
		if _, err := os.Stat(filepath.Join(dir, "venv", path.Base(name))); err != nil {
			return nil, fmt.Errorf("the dependency %s is not installed", name)
		}
	}
	content, err := os.ReadFile(filepath.Join(dir, "outputs.json"))
	if err != nil {
		return nil, err
	}
	var values map[string]any
	if err := json.Unmarshal(content, &values); err != nil {
		return nil, fmt.Errorf("outputs.json: %w", err)
	}
	for name, value := range values {
		if text, ok := value.(string); ok && strings.HasPrefix(text, "config:") {
			values[name] = request.GetConfig()[request.GetProject()+":"+strings.TrimPrefix(text, "config:")]
		}
	}
	return structpb.NewStruct(values)
}

func requirements(dir string) ([]string, error) {
	content, err := os.ReadFile(filepath.Join(dir, "requirements.txt"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	return strings.Fields(string(content)), nil
}
