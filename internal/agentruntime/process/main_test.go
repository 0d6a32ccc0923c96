package process

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	"github.com/stack-controller/stack-controller/internal/procfs"
	"github.com/stack-controller/stack-controller/tests/framework/programs"
)

// controllerVariable makes the test binary run a controller that waits to be killed.
const controllerVariable = "PROCESS_TEST_CONTROLLER"

// stubPath is the path of the program tests/framework/stubagent.
var stubPath string

func TestMain(m *testing.M) {
	if settings := os.Getenv(controllerVariable); settings != "" {
		runController(settings)
		return
	}
	os.Exit(runTests(m))
}

func runTests(m *testing.M) int {
	bin, err := os.MkdirTemp("", "process-bin-")
	if err != nil {
		panic(err)
	}
	defer func() { _ = os.RemoveAll(bin) }()
	stubPath = filepath.Join(bin, "stub")
	if err := programs.Put(context.Background(), programs.StubAgent, stubPath); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	code := m.Run()
	if left := processesOf(bin); len(left) > 0 {
		fmt.Fprintf(os.Stderr, "the tests left processes: %v\n", left)
		code = 1
	}
	return code
}

// processesOf lists running processes whose executable is in the directory.
func processesOf(dir string) []int {
	pids, err := procfs.IDs()
	if err != nil {
		panic(err)
	}
	var found []int
	for _, pid := range pids {
		exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
		if err == nil && bytes.HasPrefix([]byte(exe), []byte(dir)) {
			found = append(found, pid)
		}
	}
	return found
}

// controllerSettings are the settings of runController.
type controllerSettings struct {
	Dir, AgentPath string
	AgentArgs      []string
	Workspace      types.NamespacedName
	UID            types.UID
}

// runController runs a controller in a process of its own. It starts an agent for one Workspace, prints "ready", and waits to be killed.
func runController(text string) {
	var settings controllerSettings
	if err := json.Unmarshal([]byte(text), &settings); err != nil {
		panic(err)
	}
	r, err := New(Options{Dir: settings.Dir, AgentPath: settings.AgentPath, AgentArgs: settings.AgentArgs, PulumiPath: "true"})
	if err != nil {
		panic(err)
	}
	workspace := newWorkspace(settings.Workspace.Name, settings.UID)
	for {
		status, err := r.Ensure(context.Background(), workspace, false)
		if err != nil {
			panic(err)
		}
		if status.Ready {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	fmt.Println("ready")
	select {}
}

// newWorkspace returns a Workspace with the fields that the runtime reads, as from the API server.
func newWorkspace(name string, uid types.UID) *autov1alpha1.Workspace {
	workspace := &autov1alpha1.Workspace{}
	workspace.Namespace, workspace.Name, workspace.UID = "team", name, uid
	return workspace
}

// keyFor returns the namespace and the name of the Workspace.
func keyFor(workspace *autov1alpha1.Workspace) types.NamespacedName {
	return client.ObjectKeyFromObject(workspace)
}
