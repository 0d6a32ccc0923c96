package e2e_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fluxcd/pkg/apis/meta"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/gitserver"
)

// gitStack is a Stack that follows the main branch of a git repository, in a namespace of its name.
func gitStack(name string, repository *gitserver.Repository) *pulumiv1.Stack {
	stack := artifactStack(name)
	stack.Spec.FluxSource = nil
	stack.Spec.GitSource = pulumiv1.GitSource{ProjectRepo: repository.URL, Branch: gitserver.Branch}
	return stack
}

// startInNamespace creates a namespace of the name, with the Secret that every Stack uses, and the objects.
func startInNamespace(t *testing.T, g *WithT, name string, objects ...client.Object) {
	t.Helper()
	for _, object := range append([]client.Object{&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, passphrase(name)}, objects...) {
		g.Expect(system.Client.Create(t.Context(), object)).To(Succeed())
	}
}

// deployedFromGit creates a repository with the files and a Stack that follows it, changed as told, and waits until it is Ready.
func deployedFromGit(
	t *testing.T, g *WithT, name string, files gitserver.Files, changes ...func(*pulumiv1.Stack),
) (repository *gitserver.Repository, sha string) {
	t.Helper()
	repository, sha, err := system.Git.Create(name, files)
	g.Expect(err).NotTo(HaveOccurred())
	stack := gitStack(name, repository)
	for _, change := range changes {
		change(stack)
	}
	startInNamespace(t, g, name, stack)
	await(t.Context(), g, name, ready(sha))
	return repository, sha
}

// request asks for a reconcile of the Stack of the name in the namespace of the name, as "flux reconcile" does.
func request(t *testing.T, g *WithT, name string) {
	t.Helper()
	requestOf(t, g, keyOf(name))
}

func requestOf(t *testing.T, g *WithT, key types.NamespacedName) {
	t.Helper()
	stack := &pulumiv1.Stack{}
	g.Expect(system.Client.Get(t.Context(), key, stack)).To(Succeed())
	before := stack.DeepCopy()
	metav1.SetMetaDataAnnotation(&stack.ObjectMeta, meta.ReconcileRequestAnnotation, strconv.FormatInt(time.Now().UnixNano(), 10))
	g.Expect(system.Client.Patch(t.Context(), stack, client.MergeFrom(before))).To(Succeed())
}

func keyIn(namespace, name string) types.NamespacedName {
	return types.NamespacedName{Namespace: namespace, Name: name}
}

// historyEntry is what pulumi keeps of an update.
type historyEntry struct {
	Message     string
	Environment map[string]string
}

// history returns what the backend keeps of the updates of the stack, the oldest first.
func history(g *WithT, project, stack string) []historyEntry {
	pattern := filepath.Join(strings.TrimPrefix(system.BackendURL, "file://"), ".pulumi", "history", project, stack, "*.history.json")
	files, err := filepath.Glob(pattern)
	g.Expect(err).NotTo(HaveOccurred())
	slices.Sort(files) // they have the time in their names
	var entries []historyEntry
	for _, file := range files {
		content, err := os.ReadFile(file)
		g.Expect(err).NotTo(HaveOccurred())
		var entry historyEntry
		g.Expect(json.Unmarshal(content, &entry)).To(Succeed())
		entries = append(entries, entry)
	}
	return entries
}
