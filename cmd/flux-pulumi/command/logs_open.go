package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	"github.com/stack-controller/stack-controller/internal/agentruntime/pod/podspec"
)

// openLog opens the log of the Workspace's agent, beginning at the time. A log that is followed ends with the context.
func (c *cluster) openLog(ctx context.Context, workspace *autov1alpha1.Workspace, since time.Time, follow bool) (io.ReadCloser, error) {
	if socket, local := strings.CutPrefix(workspace.Status.Address, "unix:"); local {
		return openLocalLog(ctx, workspace.Name, filepath.Join(filepath.Dir(socket), "agent.log"), follow)
	}
	pods, err := corev1client.NewForConfig(c.config)
	if err != nil {
		return nil, fmt.Errorf("prepare calls of the API server: %w", err)
	}
	start := metav1.NewTime(since.Add(-time.Second)) // the clocks of nodes differ a little
	name := podspec.PodName(workspace)
	log, err := pods.Pods(workspace.Namespace).GetLogs(name, &corev1.PodLogOptions{
		Container: autov1alpha1.PulumiContainerName, Follow: follow, SinceTime: &start,
	}).Stream(ctx)
	if err != nil {
		return nil, explained(err, "read the log of pod %s/%s", workspace.Namespace, name)
	}
	return log, nil
}

// openLocalLog opens the log of an agent that is a process beside the controller. Only the machine of the controller has this log.
func openLocalLog(ctx context.Context, workspace, path string, follow bool) (io.ReadCloser, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("the Workspace %q is a process of the controller, whose log the API server does not have. It is %s on the machine "+
			"of the controller, and cannot be read here: %w", workspace, path, err)
	}
	if !follow {
		return file, nil
	}
	return &followed{File: file, ctx: ctx}, nil
}

// followed is a file to which another process still writes.
type followed struct {
	*os.File
	ctx context.Context
}

// Read returns what is written to the file. At the end of the file it waits for more, until the context ends.
func (f *followed) Read(into []byte) (int, error) {
	ticker := time.NewTicker(pollInterval / 5)
	defer ticker.Stop()
	for {
		n, err := f.File.Read(into)
		if n > 0 || !errors.Is(err, io.EOF) {
			return n, err
		}
		select {
		case <-f.ctx.Done():
			return 0, io.EOF
		case <-ticker.C:
		}
	}
}
