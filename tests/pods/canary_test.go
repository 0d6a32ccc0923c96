package pods_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/cluster"
	"github.com/stack-controller/stack-controller/tests/podstage"
	"github.com/stack-controller/stack-controller/tests/suite"
)

// Secret values that the tests plant. Nobody but who has to know them may write them anywhere.
const (
	passphraseCanary = "passphrase-canary-7f3b"
	tokenCanary      = "token-canary-c04e"
	secretCanary     = "secret-canary-91ac"
	// passwordCanary is in the program of the walkthrough, as a secret.
	passwordCanary = "password-canary-5d21"
	// stagePassphrase is that of stage.Apps.
	stagePassphrase = "correct horse battery staple"
)

// runner is a *testing.M whose run ends with a search for secret values.
type runner struct{ tests interface{ Run() int } }

// Run runs the tests. It fails when a secret value was written where it must not be.
func (r runner) Run() int {
	code := r.tests.Run()
	if leaks, err := findCanaries(context.Background(), metav1.NamespaceAll); err != nil || len(leaks) > 0 {
		return suite.Failed(errors.Join(err, fmt.Errorf("secrets were written to %v", leaks)))
	}
	return code
}

// expectNoCanaries searches a namespace that is about to be removed.
func expectNoCanaries(t *testing.T, namespace string) {
	leaks, err := findCanaries(context.WithoutCancel(t.Context()), namespace)
	if err != nil || len(leaks) > 0 {
		t.Error("secrets were written to:", leaks, err)
	}
}

// findCanaries names every log of the controller's pod and of workspace pods, and every kind of objects but Secrets, in
// which a secret value stands, in clear or encoded. It looks into one namespace, or into all.
func findCanaries(ctx context.Context, namespace string) (found []string, err error) {
	pods := &corev1.PodList{}
	if err := system.Client.List(ctx, pods, client.InNamespace(namespace)); err != nil {
		return nil, fmt.Errorf("list pods: %w", err)
	}
	for i := range pods.Items {
		leaks, err := findCanariesInLogs(ctx, &pods.Items[i])
		if err != nil {
			return nil, err
		}
		found = append(found, leaks...)
	}
	for _, list := range []client.ObjectList{
		&pulumiv1.StackList{}, &autov1alpha1.WorkspaceList{}, &autov1alpha1.UpdateList{}, &corev1.EventList{}, &eventsv1.EventList{},
		&corev1.ConfigMapList{}, pods,
	} {
		if err := system.Client.List(ctx, list, client.InNamespace(namespace)); err != nil {
			return nil, fmt.Errorf("list %T: %w", list, err)
		}
		content, err := json.Marshal(list)
		if err != nil {
			return nil, fmt.Errorf("encode %T: %w", list, err)
		}
		if hasCanary(content) {
			found = append(found, fmt.Sprintf("%T", list))
		}
	}
	return found, nil
}

// findCanariesInLogs names the containers of the pod that have written a secret value; of all pods but Flux's and CoreDNS.
func findCanariesInLogs(ctx context.Context, pod *corev1.Pod) (found []string, err error) {
	isController := pod.Namespace == cluster.FluxNamespace && pod.Labels["app"] == podstage.ControllerName
	isWorkspace := pod.Labels[autov1alpha1.ComponentLabel] == autov1alpha1.ComponentWorkspace
	if !isController && !isWorkspace {
		return nil, nil
	}
	for _, status := range append(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses...) {
		if status.State.Running == nil && status.State.Terminated == nil {
			continue // it has written nothing
		}
		args := []string{"logs", "--namespace=" + pod.Namespace, pod.Name, "--container=" + status.Name}
		runs := [][]string{args}
		if status.RestartCount > 0 {
			runs = append(runs, append(args[:len(args):len(args)], "--previous"))
		}
		for _, run := range runs {
			log, err := kubectl(ctx, run...)
			if err != nil && !isGone(ctx, pod.DeepCopy()) && !strings.Contains(err.Error(), "previous terminated container") {
				return nil, err
			}
			if hasCanary([]byte(log)) {
				found = append(found, "the log of "+pod.Namespace+"/"+pod.Name+"/"+status.Name)
			}
		}
	}
	return found, nil
}

func hasCanary(content []byte) bool {
	for _, canary := range []string{passphraseCanary, tokenCanary, secretCanary, passwordCanary, stagePassphrase} {
		encoded := base64.StdEncoding.EncodeToString([]byte(canary))
		if bytes.Contains(content, []byte(canary)) || bytes.Contains(content, []byte(encoded)) {
			return true
		}
	}
	return false
}
