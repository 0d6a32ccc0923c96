// Package compatibility_test checks the promise that manifests written for the Pulumi Kubernetes Operator work as they are. It has, for
// each field of the operator's API, a test that uses the field and a test that misuses it, on real servers, and the tables that list these
// tests.
package compatibility_test

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/framework/gitserver"
	"github.com/stack-controller/stack-controller/tests/framework/localsystem"
	"github.com/stack-controller/stack-controller/tests/framework/programs"
	"github.com/stack-controller/stack-controller/tests/framework/statuscheck"
	"github.com/stack-controller/stack-controller/tests/framework/systemtest"
	"github.com/stack-controller/stack-controller/tests/tools"
)

// gitPassword is the password of private repositories.
const gitPassword = "canary-of-the-git-server"

var (
	system *localsystem.System
	pulumi *recorder
	// host serves the repositories of the fixture's git server to clients that may read them.
	host *gitHost
	// programsCommit is the commit of the repository acmecorp/programs, privateCommit that of acmecorp/private. Both have the
	// directories of testdata/programs.
	programsCommit, privateCommit string
)

func TestMain(m *testing.M) {
	flag.Parse()
	if *updateDocs {
		os.Exit(m.Run()) // without servers
	}
	os.Exit(run(m))
}

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "compatibility-")
	if err == nil {
		defer os.RemoveAll(dir)
		pulumi, err = newRecorder(context.Background(), dir)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() {
		if host != nil {
			host.stop()
		}
	}()
	suite := systemtest.Suite{
		AtOnce: 3, // more would only wait for each other
		Options: localsystem.Options{Pulumi: pulumi.path(), ControllerArgs: []string{
			"--concurrent=8",
			"--requeue-dependency=5s",
			"--workspace-idle-timeout=15s", // so that the memory is enough for all tests
		}},
		SetUp: func(_ context.Context, on *localsystem.System) error {
			system = on
			return setUp(dir)
		},
		Leaks: func(ctx context.Context, _ *localsystem.System) ([]string, error) { return findCanaries(ctx) },
	}
	return suite.Run(m)
}

func setUp(dir string) error {
	files, err := gitserver.FilesFromDir("testdata/programs")
	if err != nil {
		return err
	}
	if _, programsCommit, err = system.Git.Create("acmecorp/programs", files); err != nil {
		return err
	}
	if _, _, err = system.Git.Create("acmecorp/flat", gitserver.Files{"Pulumi.yaml": "name: flat\nruntime: yaml\n"}); err != nil {
		return err
	}
	if _, privateCommit, err = system.Git.Create("acmecorp/private", files); err != nil {
		return err
	}
	if host, err = newGitHost(dir, strings.TrimSuffix(system.Git.URL(""), "/"), filepath.Join(system.Dir, "git")); err != nil {
		return err
	}
	host.protect("acmecorp/private", gitPassword)
	return nil
}

// user is the field manager of the objects that the tests apply.
const user = "kubectl"

// In the manifests, these addresses stand for the addresses of the tests' servers.
const (
	gitAddress     = "https://git.example.com"
	privateAddress = "https://private.example.com"
	sshAddress     = "ssh://git@ssh.example.com"
	backendAddress = "s3://state.example.com"
	commitAddress  = "2b0889718d3e63feeb6079ccd5e4488d8601e353"
	// filesDirectory is where programs write files.
	filesDirectory = "/srv/files"
)

// fixture is a fixture with the objects that a user applied there. Every status that is written in its namespace is checked.
type fixture struct {
	*systemtest.Fixture
	// files is the directory in which the programs of the play write files.
	files string
	// addresses replaces the addresses in manifests by those of the tests' servers. Each play has a state backend of its own.
	addresses *strings.Replacer
}

// newFixture creates a namespace with the objects that most manifests refer to (testdata/shared.yaml).
func newFixture(t *testing.T, namespace string) *fixture {
	watcher, err := statuscheck.Watch(t.Context(), system.Client, namespace)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() {
		_, err := watcher.Stop()
		NewWithT(t).Expect(err).NotTo(HaveOccurred(), "a status broke the rules of kstatus")
	})
	return newFixtureWithoutChecks(t, namespace)
}

func newFixtureWithoutChecks(t *testing.T, namespace string) *fixture {
	s := &fixture{Fixture: systemtest.New(t, system, namespace, systemtest.Patience), files: t.TempDir()}
	state := filepath.Join(strings.TrimPrefix(system.BackendURL, "file://"), namespace)
	s.Expect(os.Mkdir(state, 0o700)).To(Succeed())
	s.addresses = strings.NewReplacer(gitAddress+"/", system.Git.URL(""), privateAddress, host.http.URL, sshAddress, host.ssh.SSHAddress(),
		backendAddress, "file://"+state, commitAddress, programsCommit, filesDirectory, s.files,
		"PRIVATE_KEY", base64.StdEncoding.EncodeToString([]byte(host.privateKey)), "KNOWN_HOSTS", base64.StdEncoding.EncodeToString([]byte(host.knownHosts)))
	s.Create(&corev1.Namespace{Name: namespace})
	s.apply("shared")
	return s
}

// onlyGitIsHere replaces the addresses of public git servers by that of the fixture's git server, so that tests do not depend on other
// servers.
func (s *fixture) onlyGitIsHere() {
	s.addresses = strings.NewReplacer("https://github.com/", system.Git.URL(""))
}

// manifest returns the objects of a file below testdata, after it applies the patch to the Stack as kubectl patch --type=merge does.
func (s *fixture) manifest(name, patch string) []*unstructured.Unstructured {
	content, err := os.ReadFile(filepath.Join("testdata", filepath.FromSlash(name)+".yaml"))
	s.Succeed(err)
	objects := s.parse(string(content))
	if patch == "" {
		return objects
	}
	var change map[string]any
	s.Expect(yaml.Unmarshal([]byte(s.addresses.Replace(patch)), &change)).To(Succeed())
	patched := 0
	for _, object := range objects {
		if object.GetKind() == pulumiv1.StackKind {
			merge(object.Object, change)
			patched++
		}
	}
	s.Expect(patched).To(Equal(1), "%s must have one Stack to change", name)
	return objects
}

// parse returns the objects of a manifest, moved to the play's namespace.
func (s *fixture) parse(content string) (objects []*unstructured.Unstructured) {
	reader := utilyaml.NewYAMLReader(bufio.NewReader(strings.NewReader(s.addresses.Replace(content))))
	for {
		document, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return objects
		}
		s.Succeed(err)
		object := &unstructured.Unstructured{}
		s.Expect(yaml.Unmarshal(document, &object.Object)).To(Succeed())
		if len(object.Object) == 0 {
			continue
		}
		if object.GetKind() != "ClusterRoleBinding" {
			object.SetNamespace(s.Name)
		}
		objects = append(objects, object)
	}
}

// apply applies files below testdata in the play's namespace, as kubectl apply --server-side -f does.
func (s *fixture) apply(names ...string) {
	for _, name := range names {
		s.Expect(s.applyAll(s.manifest(name, ""))).To(Succeed())
	}
}

// applyPatched applies a file below testdata/manifests with a change of its Stack.
func (s *fixture) applyPatched(manifest, patch string) {
	s.Helper()
	s.Expect(s.applyAll(s.manifest("manifests/"+manifest, patch))).To(Succeed())
}

func (s *fixture) applyAll(objects []*unstructured.Unstructured) error {
	for _, object := range objects {
		content, err := object.MarshalJSON()
		s.Succeed(err)
		err = system.Client.Patch(s.Context(), object, client.RawPatch(types.ApplyPatchType, content),
			client.FieldOwner(user), client.ForceOwnership, client.FieldValidation("Strict"))
		if err != nil {
			return fmt.Errorf("apply %s %s: %w", object.GetKind(), object.GetName(), err)
		}
	}
	return nil
}

// replace replaces objects as kubectl replace -f does: fields that the manifest does not have are removed.
func (s *fixture) replace(name string) {
	for _, object := range s.manifest(name, "") {
		present := &unstructured.Unstructured{}
		present.SetGroupVersionKind(object.GroupVersionKind())
		s.Expect(retry.RetryOnConflict(retry.DefaultBackoff, func() error {
			if err := system.Client.Get(s.Context(), client.ObjectKeyFromObject(object), present); err != nil {
				return err
			}
			wanted := object.DeepCopy()
			wanted.SetResourceVersion(present.GetResourceVersion())
			wanted.SetFinalizers(present.GetFinalizers())
			return system.Client.Update(s.Context(), wanted)
		})).To(Succeed())
	}
}

// patch changes a Stack as kubectl patch stack NAME --type=merge does.
func (s *fixture) patch(name, change string) {
	content, err := yaml.YAMLToJSON([]byte(s.addresses.Replace(change)))
	s.Succeed(err)
	stack := &pulumiv1.Stack{Namespace: s.Name, Name: name}
	s.Expect(system.Client.Patch(s.Context(), stack, client.RawPatch(types.MergePatchType, content), client.FieldOwner(user))).To(Succeed())
}

// awaitReady waits until the Stack is deployed as its spec asks, and returns it.
func (s *fixture) awaitReady(name string) *pulumiv1.Stack { return s.AwaitStack(name, isReady) }

// isReady reports whether a Stack is deployed as its spec asks.
var isReady = statuscheck.Ready("")

// merge changes an object as a JSON merge patch does: null removes a field.
func merge(object, change map[string]any) {
	for key, value := range change {
		fields, isObject := value.(map[string]any)
		present, wasObject := object[key].(map[string]any)
		switch {
		case value == nil:
			delete(object, key)
		case isObject && wasObject:
			merge(present, fields)
		default:
			object[key] = value
		}
	}
}

// recorder is the real pulumi CLI behind a script that records each call with its arguments, its environment and its configuration, in one
// file for each workspace. The script also provides the test provider.
type recorder struct {
	dir string
}

func newRecorder(ctx context.Context, dir string) (*recorder, error) {
	cli, err := tools.Path(ctx, "pulumi", nil)
	if err != nil {
		return nil, err
	}
	home := filepath.Join(dir, "home")
	if _, err := programs.PutProvider(ctx, home); err != nil {
		return nil, err
	}
	r := &recorder{dir: dir}
	script := fmt.Sprintf(`#!/bin/sh
if [ ! -e "$PULUMI_HOME/plugins" ]; then cp -rl %[3]s "$PULUMI_HOME/" || cp -r %[3]s "$PULUMI_HOME/"; fi
workspace=${PWD#*/workspaces/}
{
  echo "pulumi $*"
  env
  previous=
  for argument; do
    if [ "$previous" = --config-file ]; then cat "$argument"; fi
    case "$argument" in --config-file=*) cat "${argument#*=}";; esac
    previous=$argument
  done
} >> %[1]s/"${workspace%%%%/*}" 2> /dev/null
# No process lives long enough to need its memory back.
GOGC=off GOMEMLIMIT=300MiB exec %[2]s "$@"
`, dir, cli, filepath.Join(home, "plugins"))
	return r, os.WriteFile(r.path(), []byte(script), 0o755)
}

func (r *recorder) path() string { return filepath.Join(r.dir, "pulumi") }

// of returns the recorded calls for the Stack, or nothing if pulumi never ran for it.
func (r *recorder) of(s *fixture, stack *pulumiv1.Stack) string {
	content, err := os.ReadFile(filepath.Join(r.dir, filepath.Base(s.Directory(stack.Name))))
	if err != nil {
		return ""
	}
	return string(content)
}

// canary is part of every secret value in the manifests here. It may appear only where users wrote it in plain text themselves.
const canary = "canary"

// findCanaries returns what stack-controller wrote with a secret value in it: its log, statuses, Updates and events.
func findCanaries(ctx context.Context) (leaks []string, err error) {
	log, err := os.ReadFile(system.ControllerLog())
	if err != nil {
		return nil, err
	}
	written := map[string]any{"log": string(log)}
	stacks, workspaces, updates, programs, events :=
		&pulumiv1.StackList{}, &autov1alpha1.WorkspaceList{}, &autov1alpha1.UpdateList{}, &pulumiv1.ProgramList{}, &corev1.EventList{}
	for _, read := range []error{
		system.Client.List(ctx, stacks), system.Client.List(ctx, workspaces), system.Client.List(ctx, updates),
		system.Client.List(ctx, programs), system.Client.List(ctx, events),
	} {
		if read != nil {
			return nil, read
		}
	}
	for _, stack := range stacks.Items {
		written["the status of Stack "+stack.Namespace+"/"+stack.Name] = stack.Status
	}
	for _, workspace := range workspaces.Items {
		written["the status of Workspace "+workspace.Namespace+"/"+workspace.Name] = workspace.Status
	}
	for _, program := range programs.Items {
		written["the status of Program "+program.Namespace+"/"+program.Name] = program.Status
	}
	written["Updates"] = updates.Items
	written["events"] = events.Items
	for place, content := range written {
		encoded, err := json.Marshal(content)
		if err != nil {
			return nil, fmt.Errorf("encode %s: %w", place, err)
		}
		if strings.Contains(string(encoded), canary) {
			leaks = append(leaks, place)
		}
	}
	return leaks, nil
}
