package faults_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fluxcd/pkg/apis/meta"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/gitserver"
	"github.com/stack-controller/stack-controller/tests/stage"
)

// work is how long a resource takes to be created or updated, in seconds.
const work = 0.4

// app is a Stack with what it should be. Its resources note what was really done to them: in a journal for each version of each
// resource, and in a file for each resource that is there.
type app struct {
	*stage.App
	scene *scene
	dir   string // of the journals and files

	mu        sync.Mutex
	resources map[string]int // versions of the wanted ones
	version   int            // of the last commit
	sha       string         // the last commit
	request   string         // the last request
	deleted   bool
	evicted   bool // its namespace was deleted

	kills     int // how often its pulumi may have been killed
	forgotten int // how often a person had to forget a resource whose creation was cut off
	seenHelp  string
}

// deploy creates a Stack with two resources.
func (s *scene) deploy(ctx context.Context, name string) (*app, error) {
	a := &app{scene: s, dir: filepath.Join(s.system.Dir, "journals", name), resources: map[string]int{"r1": 1, "r2": 1}, version: 1}
	if err := os.MkdirAll(a.dir, 0o700); err != nil {
		return nil, err
	}
	var stack *pulumiv1.Stack
	var err error
	if a.App, stack, err = s.system.Provide(ctx, name, a.program(name)); err != nil {
		return nil, err
	}
	stack.Spec.DestroyOnFinalize = true
	stack.Spec.RetryInterval = &metav1.Duration{Duration: 2 * time.Second}
	return a, s.insist(ctx, func(ctx context.Context) error { return s.system.Client.Create(ctx, stack) })
}

// program is the program at the present version.
func (a *app) program(name string) gitserver.Files {
	var text strings.Builder
	fmt.Fprintf(&text, "name: %s\nruntime: yaml\noutputs:\n  version: %d\n", name, a.version)
	for i, resource := range slices.Sorted(maps.Keys(a.resources)) {
		if i == 0 {
			text.WriteString("resources:\n")
		}
		version := a.resources[resource]
		fmt.Fprintf(&text, "  %s:\n    type: test:index:Sleep\n    options: {version: 0.1.0}\n", resource)
		fmt.Fprintf(&text, "    properties: {seconds: %g, journal: %s, file: %s, content: \"%d\"}\n",
			work, a.journal(resource, version), filepath.Join(a.dir, resource), version)
	}
	return gitserver.Files{"Pulumi.yaml": text.String()}
}

// journal is the file that tells what was done to a version of a resource.
func (a *app) journal(resource string, version int) string {
	return filepath.Join(a.dir, fmt.Sprintf("%s.%d.journal", resource, version))
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
	{"ten commits", (*app).tenCommits},
	{"spec edit", (*app).edit},
	{"request", (*app).ask},
	{"delete", (*app).remove},
}

// commit wants a new version of every resource.
func (a *app) commit(ctx context.Context, _ *rand.Rand) error {
	return a.push(ctx, 1, func() {
		for resource := range a.resources {
			a.resources[resource] = a.version
		}
	})
}

func (a *app) tenCommits(ctx context.Context, _ *rand.Rand) error {
	return a.push(ctx, 10, func() {
		for resource := range a.resources {
			a.resources[resource] = a.version
		}
	})
}

// rework wants another resource, and one of those that there are no more. No name comes twice.
func (a *app) rework(ctx context.Context, random *rand.Rand) error {
	choice := random.IntN(1 << 16)
	return a.push(ctx, 1, func() {
		names := slices.Sorted(maps.Keys(a.resources))
		delete(a.resources, names[choice%len(names)])
		a.resources[fmt.Sprintf("r%d", a.version+1)] = a.version
	})
}

// push commits so often, and announces each commit.
func (a *app) push(ctx context.Context, times int, next func()) error {
	for range times {
		if err := a.commitOnce(next); err != nil {
			return err
		}
		if err := a.scene.insist(ctx, func(ctx context.Context) error { return a.scene.system.Fetch(ctx, a.App) }); err != nil {
			return err
		}
	}
	return nil
}

func (a *app) commitOnce(next func()) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.version++
	next()
	sha, err := a.Repository.Commit(a.program(a.Name))
	a.sha = sha
	return err
}

// edit changes the spec.
func (a *app) edit(ctx context.Context, random *rand.Rand) error {
	value, err := json.Marshal(fmt.Sprint(random.IntN(1 << 30)))
	if err != nil {
		return err
	}
	return a.patch(ctx, func(stack *pulumiv1.Stack) {
		stack.Spec.Config = map[string]apiextensionsv1.JSON{"edited": {Raw: value}}
	})
}

// ask requests an update.
func (a *app) ask(ctx context.Context, random *rand.Rand) error {
	request := fmt.Sprint("request-", random.IntN(1<<30))
	a.mu.Lock()
	a.request = request
	a.mu.Unlock()
	return a.patch(ctx, func(stack *pulumiv1.Stack) {
		metav1.SetMetaDataAnnotation(&stack.ObjectMeta, meta.ReconcileRequestAnnotation, request)
	})
}

// remove deletes the Stack, which destroys its resources.
func (a *app) remove(ctx context.Context, _ *rand.Rand) error {
	a.mu.Lock()
	a.deleted = true
	a.mu.Unlock()
	stack := &pulumiv1.Stack{ObjectMeta: metav1.ObjectMeta{Namespace: a.Namespace, Name: a.Name}}
	err := a.scene.insist(ctx, func(ctx context.Context) error { return a.scene.system.Client.Delete(ctx, stack) })
	return client.IgnoreNotFound(err)
}

func (a *app) patch(ctx context.Context, edit func(*pulumiv1.Stack)) error {
	return a.scene.insist(ctx, func(ctx context.Context) error {
		stack := &pulumiv1.Stack{}
		if err := a.scene.system.Client.Get(ctx, a.Key(), stack); err != nil {
			return err
		}
		before := stack.DeepCopy()
		edit(stack)
		return a.scene.system.Client.Patch(ctx, stack, client.MergeFrom(before))
	})
}

func (a *app) isDeleted() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.deleted
}

// explain tells how the app stands, for a message about a failure.
func (a *app) explain(ctx context.Context) string {
	a.mu.Lock()
	wanted := fmt.Sprintf("%s, wanted %v, deleted %t, kills %d, forgotten %d", a.Name, a.resources, a.deleted, a.kills, a.forgotten)
	a.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	var status strings.Builder
	stack := &pulumiv1.Stack{}
	if err := a.scene.system.Client.Get(ctx, a.Key(), stack); err == nil {
		encoded, _ := json.MarshalIndent(stack.Status, "", "  ")
		fmt.Fprintf(&status, "Stack, deleted at %v, its status: %s\n", stack.DeletionTimestamp, encoded)
	}
	return wanted + ":\n" + status.String() + a.scene.system.Explain(ctx, a.App)
}

// killed notes that a process of pulumi for the app may have been killed.
func (a *app) killed() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.kills++
}

var errNotSettled = errors.New("it is not settled")
