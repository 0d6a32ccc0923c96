package podfaults_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/gitserver"
	"github.com/stack-controller/stack-controller/tests/stage"
	"github.com/stack-controller/stack-controller/tests/statuscheck"
)

// work is how long a resource takes to be created or updated, in seconds: as long as all the rest of an update.
const work = 2

// app is a Stack with what it should be. Its resources note what was really done to them: in a journal for each version of each
// resource, and in a file for each resource that is there.
type app struct {
	*stage.App
	scene *scene
	dir   string // of the journals and files, on this machine

	mu        sync.Mutex
	resources map[string]int // versions of the wanted ones
	version   int            // of the last commit
	sha       string         // the last commit
	request   string         // the last request
	deleted   bool
	changed   bool // since the last Update was seen

	kills     int // how often its pulumi may have been killed
	forgotten int // how often a person had to forget a resource whose creation was cut off
	helpedFor string
	begun     map[string]int // lines "start" in the journals when an Update was seen first
	lost      int            // of what was begun, before that Update, what never ended
	statuses  *statuscheck.Watcher
}

// deploy creates a Stack with two resources.
func (s *scene) deploy(ctx context.Context, name string) (*app, error) {
	a := &app{
		scene: s, dir: filepath.Join(s.system.StateDir(), "journals", name),
		resources: map[string]int{"r1": 1, "r2": 1}, version: 1, begun: map[string]int{},
	}
	if err := os.MkdirAll(a.dir, 0o755); err != nil {
		return nil, err
	}
	// The user of the pods writes there.
	if err := os.Chmod(a.dir, 0o777); err != nil {
		return nil, err
	}
	var stack *pulumiv1.Stack
	var err error
	if a.App, stack, err = s.system.Provide(ctx, name, a.program(name)); err != nil {
		return nil, err
	}
	stack.Spec.DestroyOnFinalize = true
	stack.Spec.RetryInterval = &metav1.Duration{Duration: 2 * time.Second}
	return a, s.system.Client.Create(ctx, stack)
}

// program is the program at the present version. The pods see the directory under another name.
func (a *app) program(name string) gitserver.Files {
	var text strings.Builder
	fmt.Fprintf(&text, "name: %s\nruntime: yaml\noutputs:\n  version: %d\n", name, a.version)
	for i, resource := range slices.Sorted(maps.Keys(a.resources)) {
		if i == 0 {
			text.WriteString("resources:\n")
		}
		version, dir := a.resources[resource], "/state/journals/"+name
		fmt.Fprintf(&text, "  %s:\n    type: test:index:Sleep\n    options: {version: 0.1.0}\n", resource)
		fmt.Fprintf(&text, "    properties: {seconds: %d, journal: %s/%s.%d.journal, file: %s/%s, content: \"%d\"}\n",
			work, dir, resource, version, dir, resource, version)
	}
	return gitserver.Files{"Pulumi.yaml": text.String()}
}

// change is something that is wanted of a Stack.
type change struct {
	name string
	make func(*app, context.Context, *rand.Rand) error
}

// changes are what happens to Stacks, by how often.
var changes = []change{
	{"commit", (*app).commit},
	{"commit", (*app).commit},
	{"add and remove resources", (*app).rework},
	{"add and remove resources", (*app).rework},
	{"spec edit", (*app).edit},
	{"request", (*app).ask},
	{"delete", (*app).remove},
}

// commit wants a new version of every resource.
func (a *app) commit(ctx context.Context, _ *rand.Rand) error {
	return a.push(ctx, func() {
		for resource := range a.resources {
			a.resources[resource] = a.version
		}
	})
}

// rework wants another resource, and one of those that there are no more. No name comes twice.
func (a *app) rework(ctx context.Context, random *rand.Rand) error {
	choice := random.IntN(1 << 16)
	return a.push(ctx, func() {
		names := slices.Sorted(maps.Keys(a.resources))
		delete(a.resources, names[choice%len(names)])
		a.resources[fmt.Sprintf("r%d", a.version+1)] = a.version
	})
}

// push commits and announces the commit.
func (a *app) push(ctx context.Context, next func()) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.version++
	a.changed = true
	next()
	var err error
	if a.sha, err = a.Repository.Commit(a.program(a.Name)); err != nil {
		return err
	}
	return a.scene.system.Fetch(ctx, a.App)
}

// edit changes the spec.
func (a *app) edit(ctx context.Context, random *rand.Rand) error {
	value, err := json.Marshal(fmt.Sprint(random.IntN(1 << 30)))
	if err != nil {
		return err
	}
	a.change()
	return a.patch(ctx, func(stack *pulumiv1.Stack) {
		stack.Spec.Config = map[string]apiextensionsv1.JSON{"edited": {Raw: value}}
	})
}

// ask requests an update.
func (a *app) ask(ctx context.Context, random *rand.Rand) error {
	request := fmt.Sprint("request-", random.IntN(1<<30))
	a.mu.Lock()
	a.request, a.changed = request, true
	a.mu.Unlock()
	return a.annotate(ctx, request)
}

func (a *app) annotate(ctx context.Context, request string) error {
	return a.patch(ctx, func(stack *pulumiv1.Stack) {
		metav1.SetMetaDataAnnotation(&stack.ObjectMeta, pulumiv1.ReconcileRequestAnnotation, request)
	})
}

// remove deletes the Stack, which destroys its resources.
func (a *app) remove(ctx context.Context, _ *rand.Rand) error {
	a.mu.Lock()
	a.deleted, a.changed = true, true
	a.mu.Unlock()
	stack := &pulumiv1.Stack{ObjectMeta: metav1.ObjectMeta{Namespace: a.Namespace, Name: a.Name}}
	return client.IgnoreNotFound(a.scene.system.Client.Delete(ctx, stack))
}

// change notes that something else is wanted now.
func (a *app) change() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.changed = true
}

func (a *app) patch(ctx context.Context, edit func(*pulumiv1.Stack)) error {
	stack := &pulumiv1.Stack{}
	if err := a.scene.system.Client.Get(ctx, a.Key(), stack); err != nil {
		return err
	}
	before := stack.DeepCopy()
	edit(stack)
	return a.scene.system.Client.Patch(ctx, stack, client.MergeFrom(before))
}

// pod returns the pod of the workspace, nil when there is none.
func (a *app) pod(ctx context.Context) *corev1.Pod {
	pod := &corev1.Pod{}
	err := a.scene.system.Client.Get(ctx, client.ObjectKey{Namespace: a.Namespace, Name: a.Name + "-workspace-0"}, pod)
	if err != nil {
		return nil
	}
	return pod
}

// killed notes that a process of pulumi for the app may have been killed.
func (a *app) killed() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.kills++
}
