package command

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	"github.com/fluxcd/pkg/runtime/conditions"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/kubernetes/scheme"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/util/exec"
	"k8s.io/streaming/pkg/httpstream"
	"sigs.k8s.io/controller-runtime/pkg/client"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/cmd/flux-pulumi/print"
	"github.com/stack-controller/stack-controller/internal/agentruntime/pod/podspec"
)

const (
	// inPod is a script that runs pulumi as the agent does. The agent itself reads the variables that init containers wrote, so that pulumi has
	// the same backend as in an update. A volume may still have another agent where the image of the agent is mounted. One of an earlier version
	// cannot start a command: a shell reads the variables then, which takes some values for something else.
	inPod = `agent=` + podspec.AgentPath + `; [ ! -x ` + podspec.ImageAgent + ` ] || agent=` + podspec.ImageAgent + `
if [ -x "$agent" ] && ! "$agent" exec true >/dev/null 2>&1; then
  set -a; [ ! -f ` + podspec.EnvFile + ` ] || . ` + podspec.EnvFile + `; set +a
  exec pulumi "$@"
fi
exec "$agent" exec --env-file=` + podspec.EnvFile + ` pulumi "$@"`
	// maxComplaint is how much of the output of a failed command its error shows, in bytes.
	maxComplaint = 4096
)

// noWorkspace returns the error of a command that needs the Workspace of the Stack.
func noWorkspace(stack *pulumiv1.Stack) error {
	return fmt.Errorf("the Stack %q has no Workspace: its next update creates it. With spec.workspaceReclaimPolicy Delete, it is removed after each update; "+
		"set Retain to keep it", stack.Name)
}

// pulumi runs the CLI in the Workspace's pod, on the Pulumi stack of the Stack.
func (c *cluster) pulumi(ctx context.Context, stack *pulumiv1.Stack, in io.Reader, out io.Writer, args ...string) error {
	workspace := &autov1alpha1.Workspace{}
	if err := c.read(ctx, client.ObjectKeyFromObject(stack), workspace); apierrors.IsNotFound(err) {
		return noWorkspace(stack)
	} else if err != nil {
		return err
	}
	if conditions.GetReason(workspace, autov1alpha1.WorkspaceReady) == autov1alpha1.IdleReason {
		return fmt.Errorf("the Workspace %q is idle and has no pod. The command 'diff stack %s --keep' starts the pod, also while the Stack is suspended; then try again",
			workspace.Name, stack.Name)
	}
	if socket, local := strings.CutPrefix(workspace.Status.Address, "unix:"); local {
		return fmt.Errorf("the Workspace %q is a process of the controller, which commands do not get into. Run pulumi on the machine of the "+
			"controller instead; the workspace is beside %s", workspace.Name, socket)
	}
	pods, err := corev1client.NewForConfig(c.config)
	if err != nil {
		return fmt.Errorf("prepare calls of the API server: %w", err)
	}
	command := append([]string{"sh", "-c", inPod, "sh"}, append(args, "--stack="+stack.Spec.Stack, "--non-interactive")...)
	pod := podspec.PodName(workspace)
	request := pods.RESTClient().Get().Resource("pods").Namespace(stack.Namespace).Name(pod).SubResource("exec").VersionedParams(&corev1.PodExecOptions{
		Container: autov1alpha1.PulumiContainerName, Command: command, Stdin: in != nil, Stdout: true, Stderr: true,
	}, scheme.ParameterCodec)
	executor, err := c.executor(request.URL())
	if err != nil {
		return fmt.Errorf("prepare a command in pod %s/%s: %w", stack.Namespace, pod, err)
	}
	complaint := &tail{limit: maxComplaint}
	err = executor.StreamWithContext(ctx, remotecommand.StreamOptions{Stdin: in, Stdout: out, Stderr: complaint})
	if exit := (exec.CodeExitError{}); errors.As(err, &exit) {
		return fmt.Errorf("pulumi %s failed in pod %s/%s: %s", strings.Join(args, " "), stack.Namespace, pod, print.Clean(complaint.String()))
	}
	return explained(err, "run pulumi in pod %s/%s", stack.Namespace, pod)
}

// executor runs a command by a websocket, or as older clients do where a proxy or the API server refuses that. It is how kubectl does it: the
// one needs the verb get, since Kubernetes 1.35 also create, and the other the verb create.
func (c *cluster) executor(address *url.URL) (remotecommand.Executor, error) {
	websocket, err := remotecommand.NewWebSocketExecutor(c.config, http.MethodGet, address.String())
	if err != nil {
		return nil, err
	}
	spdy, err := remotecommand.NewSPDYExecutor(c.config, http.MethodPost, address)
	if err != nil {
		return nil, err
	}
	return remotecommand.NewFallbackExecutor(websocket, spdy, func(err error) bool {
		return httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err)
	})
}

// tail keeps the last bytes that are written to it.
type tail struct {
	limit   int
	content bytes.Buffer
}

func (t *tail) Write(content []byte) (int, error) {
	t.content.Write(content)
	if more := t.content.Len() - t.limit; more > 0 {
		t.content.Next(more)
	}
	return len(content), nil
}

func (t *tail) String() string { return t.content.String() }
