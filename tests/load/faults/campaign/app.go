package campaign

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
	"strconv"
	"strings"
	"sync"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fluxcd/pkg/apis/meta"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/framework/gitserver"
	"github.com/stack-controller/stack-controller/tests/framework/localsystem"
)

// App is a Stack together with its expected state. Its resources record what was really done to them: in a journal for each version of each
// resource, and in a file for each resource that exists.
type App struct {
	*localsystem.App
	environment *Environment
	dir         string // of the journals and files, as a path on this machine

	mu        sync.Mutex
	resources map[string]int // the expected resources with their versions
	version   int            // of the last commit
	sha       string         // the last commit
	request   string         // the last request
	changed   bool           // a change was made since TakeChange was called
	deleted   bool
	evicted   bool // its namespace was deleted
	train     *train

	kills     int // how often a pulumi process of the Stack may have been killed
	forgotten int // how often the test had to forget a resource whose creation was cut off, as a person would
	seenHelp  string
}

// deploy creates a Stack with two resources. If it is gated, each change needs an approval. With a tier it follows the train.
func (w *Environment) deploy(ctx context.Context, name string, gated bool, tier string) (*App, error) {
	a := &App{environment: w, dir: filepath.Join(w.Journals, name), resources: map[string]int{"r1": 1, "r2": 1}, version: 1}
	if err := os.MkdirAll(a.dir, 0o755); err != nil {
		return nil, err
	}
	// Pods run with other users.
	if err := os.Chmod(a.dir, 0o777); err != nil {
		return nil, err
	}
	var stack *pulumiv1.Stack
	var err error
	if tier != "" {
		a.App, stack, err = w.join(ctx, a, name, tier)
	} else {
		a.App, stack, err = w.Provide(ctx, name, gitserver.Files{"Pulumi.yaml": a.program(name)})
	}
	if err != nil {
		return nil, err
	}
	stack.Spec.DestroyOnFinalize = true
	stack.Spec.RetryInterval = &metav1.Duration{Duration: 2 * time.Second}
	stack.Spec.Drift = &pulumiv1.DriftSpec{Mode: pulumiv1.DriftModeDetect, Interval: metav1.Duration{Duration: 24 * time.Hour}}
	if gated {
		w.gate.close(stack)
	}
	return a, w.Retry(ctx, func(ctx context.Context) error { return w.Client.Create(ctx, stack) })
}

// program returns the program of the current version.
func (a *App) program(name string) string {
	var text strings.Builder
	fmt.Fprintf(&text, "name: %s\nruntime: yaml\noutputs:\n  version: %d\n", name, a.version)
	for i, resource := range slices.Sorted(maps.Keys(a.resources)) {
		if i == 0 {
			text.WriteString("resources:\n")
		}
		version, path := a.resources[resource], filepath.Join(a.environment.JournalsInside, name, resource)
		fmt.Fprintf(&text, "  %s:\n    type: test:index:Sleep\n    options: {version: 0.1.0}\n", resource)
		fmt.Fprintf(&text, "    properties: {seconds: %g, journal: %s.%d.journal, file: %s, content: \"%d\"}\n",
			a.environment.Work.Seconds(), path, version, path, version)
	}
	return text.String()
}

// Change is a change to a Stack that a run can make.
type Change struct {
	Name string
	make func(*App, context.Context, *rand.Rand) error
}

// All changes.
var (
	Commit       = Change{"commit", func(a *App, ctx context.Context, _ *rand.Rand) error { return a.commit(ctx, 1) }}
	TenCommits   = Change{"ten commits", func(a *App, ctx context.Context, _ *rand.Rand) error { return a.commit(ctx, 10) }}
	Rework       = Change{"add and remove resources", (*App).rework}
	Edit         = Change{"spec edit", (*App).edit}
	Request      = Change{"request", (*App).ask}
	LookForDrift = Change{"look for drift", (*App).lookForDrift}
	Delete       = Change{"delete", func(a *App, ctx context.Context, _ *rand.Rand) error { return a.Remove(ctx) }}
)

// commit pushes a new version of every resource, the given number of times.
func (a *App) commit(ctx context.Context, times int) error {
	return a.push(ctx, times, a.renew)
}

// CommitBlocked pushes a new version of every resource, and creates a directory in place of each new journal, so that the resources cannot
// record what is done to them. It returns the directories.
func (a *App) CommitBlocked(ctx context.Context) (blocked []string, err error) {
	var failed error
	err = a.push(ctx, 1, func() {
		a.renew()
		for resource := range a.resources {
			dir := filepath.Join(a.dir, fmt.Sprintf("%s.%d.journal", resource, a.version))
			failed = errors.Join(failed, os.Mkdir(dir, 0o700))
			blocked = append(blocked, dir)
		}
	})
	return blocked, errors.Join(failed, a.Tolerate(err))
}

// rework adds a resource and removes an existing one. No name is used twice.
func (a *App) rework(ctx context.Context, random *rand.Rand) error {
	choice := random.IntN(1 << 16)
	return a.push(ctx, 1, func() {
		names := slices.Sorted(maps.Keys(a.resources))
		delete(a.resources, names[choice%len(names)])
		a.resources[fmt.Sprintf("r%d", a.version+1)] = a.version
	})
}

// push commits the given number of times, and lets source-controller fetch each commit.
func (a *App) push(ctx context.Context, times int, next func()) error {
	for range times {
		if err := a.Push(next); err != nil {
			return err
		}
		for _, fetched := range append(a.train.sources(), a.App) {
			err := a.environment.Retry(ctx, func(ctx context.Context) error { return a.environment.Fetch(ctx, fetched) })
			if err != nil && (fetched == a.App || !apierrors.IsNotFound(err)) {
				return err
			}
		}
	}
	return nil
}

// Push commits the next version, and leaves it to the caller to announce the commit.
func (a *App) Push(next func()) error {
	if a.train != nil {
		return a.train.push(a, next)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.advance(next)
	sha, err := a.Repository.Commit(gitserver.Files{"Pulumi.yaml": a.program(a.Name)})
	a.sha = sha
	return err
}

// advance begins the next version.
func (a *App) advance(next func()) {
	a.version++
	a.changed = true
	next()
}

// renew gives every resource the current version.
func (a *App) renew() {
	for resource := range a.resources {
		a.resources[resource] = a.version
	}
}

// edit changes the spec.
func (a *App) edit(ctx context.Context, random *rand.Rand) error {
	value, err := json.Marshal(fmt.Sprint(random.IntN(1 << 30)))
	if err != nil {
		return err
	}
	a.note(func() { a.changed = true })
	return a.patch(ctx, func(stack *pulumiv1.Stack) {
		stack.Spec.Config = map[string]apiextensionsv1.JSON{"edited": {Raw: value}}
	})
}

// ask requests an update.
func (a *App) ask(ctx context.Context, random *rand.Rand) error {
	request := fmt.Sprint("request-", random.IntN(1<<30))
	a.Expect(request)
	return a.annotate(ctx, meta.ReconcileRequestAnnotation, request)
}

// lookForDrift requests a drift check, which must not delay anything.
func (a *App) lookForDrift(ctx context.Context, random *rand.Rand) error {
	return a.annotate(ctx, pulumiv1.DriftCheckAnnotation, fmt.Sprint("check-", random.IntN(1<<30)))
}

// Expect makes the app wait until the request is handled. An empty request stands for none.
func (a *App) Expect(request string) { a.note(func() { a.request, a.changed = request, true }) }

// Remove deletes the Stack, which destroys its resources.
func (a *App) Remove(ctx context.Context) error {
	a.note(func() { a.deleted, a.changed = true, true })
	return a.environment.Remove(ctx, &pulumiv1.Stack{Namespace: a.Namespace, Name: a.Name})
}

// Evict records that the namespace, and the Stack with it, is about to be deleted.
func (a *App) Evict() { a.note(func() { a.deleted, a.evicted = true, true }) }

func (a *App) annotate(ctx context.Context, annotation, value string) error {
	return a.patch(ctx, func(stack *pulumiv1.Stack) { metav1.SetMetaDataAnnotation(&stack.ObjectMeta, annotation, value) })
}

func (a *App) patch(ctx context.Context, edit func(*pulumiv1.Stack)) error {
	return a.environment.Retry(ctx, func(ctx context.Context) error {
		stack := &pulumiv1.Stack{}
		if err := a.environment.Client.Get(ctx, a.Key(), stack); err != nil {
			return err
		}
		before := stack.DeepCopy()
		edit(stack)
		return a.environment.Client.Patch(ctx, stack, client.MergeFrom(before))
	})
}

// Killed records that a pulumi process of the app may have been killed.
func (a *App) Killed() { a.note(func() { a.kills++ }) }

// TakeChange reports whether the Stack was changed since the last call that forgot the changes. It forgets them if forget is true.
func (a *App) TakeChange(forget bool) (changed bool) {
	a.note(func() {
		changed = a.changed
		a.changed = a.changed && !forget
	})
	return changed
}

func (a *App) note(what func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	what()
}

// IsDeleted reports whether the Stack was deleted.
func (a *App) IsDeleted() (deleted bool) {
	a.note(func() { deleted = a.deleted })
	return deleted
}

// explain describes the state of the app, for a message about a failure.
func (a *App) explain(ctx context.Context) string {
	var text strings.Builder
	a.note(func() {
		fmt.Fprintf(&text, "%s, wanted %v, deleted %t, kills %d, forgotten %d:\n", a.Name, a.resources, a.deleted, a.kills, a.forgotten)
	})
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	stack := &pulumiv1.Stack{}
	if err := a.environment.Client.Get(ctx, a.Key(), stack); err == nil {
		encoded, _ := json.MarshalIndent(stack.Status, "", "  ")
		fmt.Fprintf(&text, "Stack, deleted at %v, its status: %s\n", stack.DeletionTimestamp, encoded)
	}
	return text.String() + a.environment.System.Explain(ctx, a) + a.environment.Explain(ctx, a.App)
}

// journalCounts counts the entries in the journals of a resource, over all of its versions: "create start", "update end" and so on.
type journalCounts map[string]int

// readJournals returns the deeds of each resource, and those of each version with the key "resource.version".
func (a *App) readJournals() (byResource, byVersion map[string]journalCounts, err error) {
	byResource, byVersion = map[string]journalCounts{}, map[string]journalCounts{}
	files, err := filepath.Glob(filepath.Join(a.dir, "*.journal"))
	if err != nil {
		return nil, nil, err
	}
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			return nil, nil, err
		}
		version := strings.TrimSuffix(filepath.Base(file), ".journal")
		resource, _, _ := strings.Cut(version, ".")
		if byResource[resource] == nil {
			byResource[resource] = journalCounts{}
		}
		byVersion[version] = journalCounts{}
		for line := range strings.Lines(string(content)) {
			byResource[resource][strings.TrimSpace(line)]++
			byVersion[version][strings.TrimSpace(line)]++
		}
	}
	return byResource, byVersion, nil
}

// Counts returns how many operations on resources have begun, and how many have ended, including cancelled ones.
func (a *App) Counts() (begun, ended int) {
	byResource, _, err := a.readJournals()
	if err != nil {
		return 0, 0
	}
	for _, done := range byResource {
		for line, count := range done {
			if strings.HasSuffix(line, " start") {
				begun += count
			} else {
				ended += count
			}
		}
	}
	return begun, ended
}

// audit returns an error that lists where the journals contradict the promise that every expected state was made exactly once.
func (a *App) audit() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	byResource, byVersion, err := a.readJournals()
	if err != nil {
		return err
	}
	var wrong []error
	report := func(is bool, resource, format string, args ...any) {
		if is {
			what := fmt.Sprintf(format, args...)
			wrong = append(wrong, fmt.Errorf("resource %s of %s: %s; its journal: %v", resource, a.Name, what, byResource[resource]))
		}
	}
	wanted := a.resources
	if a.deleted {
		wanted = nil
	}
	for resource := range wanted {
		report(byResource[resource] == nil, resource, "it was lost")
	}
	for resource, done := range byResource {
		version, is := wanted[resource]
		// After a creation was cancelled, or was cut off and forgotten, the resource may be created again.
		created := done["create start"] - done["create aborted"]
		report(created > 1+a.forgotten, resource, "it was created %d times", created)
		content, err := os.ReadFile(filepath.Join(a.dir, resource))
		report(is != (err == nil), resource, "wanted is %t, there is %t", is, err == nil)
		if !is {
			report(done["delete end"] < done["create end"]-a.forgotten, resource,
				"it was created %d times and deleted %d times", done["create end"], done["delete end"])
			report(done["delete end"] > 1+a.kills, resource, "it was deleted %d times", done["delete end"])
			continue
		}
		report(done["delete end"] > 0, resource, "it was deleted")
		report(string(content) != strconv.Itoa(version), resource, "it is at version %q instead of %d", content, version)
		last := byVersion[fmt.Sprintf("%s.%d", resource, version)]
		made := last["create end"] + last["update end"]
		report(made < 1 || made > 1+a.kills+a.forgotten, resource, "version %d was made %d times, with %d kills", version, made, a.kills)
	}
	return errors.Join(wrong...)
}

// pendingOperations returns how many operations on resources pulumi has begun without knowing their end.
func (a *App) pendingOperations() (int, error) {
	backend := strings.TrimPrefix(a.environment.BackendURL, "file://")
	content, err := os.ReadFile(filepath.Join(backend, ".pulumi", "stacks", a.Name, "dev.json"))
	if err != nil {
		return 0, err
	}
	var state struct {
		Checkpoint struct {
			Latest struct {
				Pending []json.RawMessage `json:"pending_operations"`
			} `json:"latest"`
		} `json:"checkpoint"`
	}
	err = json.Unmarshal(content, &state)
	return len(state.Checkpoint.Latest.Pending), err
}

// removeFiles removes the files that a cut-off creation may have left.
func (a *App) removeFiles() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.forgotten++
	entries, err := os.ReadDir(a.dir)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if filepath.Ext(entry.Name()) == ".journal" {
			continue
		}
		if err := os.Remove(filepath.Join(a.dir, entry.Name())); err != nil {
			return err
		}
	}
	return nil
}
