package podfaults_test

import (
	"context"
	"fmt"
	"path/filepath"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stack-controller/stack-controller/tests/cluster"
	"github.com/stack-controller/stack-controller/tests/podstage"
)

// scene is the running system with what the faults have made of it.
type scene struct {
	system   *podstage.Stage
	observer *observer
	// node is held by a fault of the node, and controller by one that replaces the controller: two at once would heal each other.
	node, controller sync.Mutex
	// next tells that the controller is of the other image.
	next bool
}

func newScene(system *podstage.Stage) *scene {
	return &scene{system: system, observer: newObserver(groupOf(system.Cluster))}
}

// groupOf is the name of the cgroup in which all pods of the cluster are.
func groupOf(c *cluster.Cluster) string {
	return fmt.Sprintf("stack-controller-%d", c.Supervisor().PID())
}

// controllerPods returns the pods of stack-controller that are not on their way out.
func (s *scene) controllerPods(ctx context.Context) ([]corev1.Pod, error) {
	list := &corev1.PodList{}
	err := s.system.Client.List(ctx, list, client.InNamespace(cluster.FluxNamespace), client.MatchingLabels{"app": podstage.ControllerName})
	var found []corev1.Pod
	for _, pod := range list.Items {
		if pod.DeletionTimestamp == nil && len(pod.Status.ContainerStatuses) > 0 {
			found = append(found, pod)
		}
	}
	return found, err
}

// calm ends, between two runs, what kubelet remembers of the last ones: containers that were killed before start again later and
// later.
func (s *scene) calm(ctx context.Context, apps []*app) error {
	pods, err := s.controllerPods(ctx)
	if err != nil {
		return err
	}
	for _, a := range apps {
		if pod := a.pod(ctx); pod != nil {
			pods = append(pods, *pod)
		}
	}
	replaced := false
	for i, pod := range pods {
		if len(pod.Status.ContainerStatuses) == 0 || pod.Status.ContainerStatuses[0].RestartCount == 0 {
			continue
		}
		if err := s.system.Client.Delete(ctx, &pods[i]); client.IgnoreNotFound(err) != nil {
			return err
		}
		replaced = true
	}
	if !replaced {
		return nil
	}
	wait(ctx, 10*pollInterval)
	return s.system.AwaitController(ctx)
}

// locks returns the locks on the app's stack in the backend.
func (a *app) locks() []string {
	found, _ := filepath.Glob(filepath.Join(a.scene.system.StateDir(), ".pulumi", "locks", "*", a.Name, "*", "*")) // the pattern is fine
	return found
}

// dismiss removes the namespace of an app that is deleted.
func (s *scene) dismiss(ctx context.Context, a *app) error {
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: a.Namespace}}
	return client.IgnoreNotFound(s.system.Client.Delete(ctx, namespace))
}
