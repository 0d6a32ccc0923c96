package pods_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/framework/cloud"
	"github.com/stack-controller/stack-controller/tests/framework/gitserver"
	"github.com/stack-controller/stack-controller/tests/framework/suite"
	"github.com/stack-controller/stack-controller/tests/tools"
)

// walkthrough is the key of the Stack in the walkthrough.
var walkthrough = client.ObjectKey{Namespace: "default", Name: "random-yaml"}

// TestWalkthrough runs the walkthrough of the Pulumi Kubernetes Operator step by step, as users who migrate from it would. Only the
// addresses of the repository and of Pulumi Cloud, and the image, differ.
func TestWalkthrough(t *testing.T) {
	suite.Long(t, "runs the commands of the walkthrough of the former operator")
	t.Parallel()
	g := NewWithT(t)
	ctx := t.Context()
	restrictDefault(ctx, g)
	files, err := gitserver.FilesFromDir("testdata/walkthrough/repository")
	g.Expect(err).NotTo(HaveOccurred())
	repository, _, err := system.Git.Create("pulumi-examples", files)
	g.Expect(err).NotTo(HaveOccurred())

	workspaces, updates := watchTable(ctx, g, walkthrough.Namespace, "workspace"), watchTable(ctx, g, walkthrough.Namespace, "update")
	apply(ctx, g, "walkthrough/gitrepository.yaml", map[string]string{"URL": repository.URL, "BRANCH": gitserver.Branch})
	_, err = kubectl(ctx, "create", "secret", "generic", "pulumi-api-secret", "-n", "default", "--from-literal=accessToken="+tokenCanary)
	g.Expect(err).NotTo(HaveOccurred())
	apply(ctx, g, "walkthrough/serviceaccount.yaml", nil)
	service := cloud.New(tokenCanary)
	apply(ctx, g, "walkthrough/stack.yaml", map[string]string{"IMAGE": system.Images.Pulumi.Reference, "CLOUD": serveCloud(t, g, service)})
	names := threeUpdates(t, g)
	checkWorkspaces(g, workspaces())
	checkUpdates(g, updates(), names)
	checkColumns(ctx, g)
	checkStack(ctx, g, names[len(names)-1])

	pod := podOf(ctx, g, walkthrough.Namespace, walkthrough.Name)
	g.Expect(pod.Name).To(Equal("random-yaml-workspace-0"))
	g.Expect(pod.Spec.ServiceAccountName).To(Equal("random-yaml"))
	g.Expect(pod.Status.ContainerStatuses[0].RestartCount).To(BeZero())
	g.Expect(findCanariesInLogs(ctx, pod)).To(BeEmpty())
	g.Expect(exists(g, "random-password")).To(BeTrue())
	deleteStack(t, g)
	g.Expect(service.Updates(cloud.User + "/random/dev")).To(ContainElement(cloud.Update{Kind: "destroy", Status: "succeeded"}))
	g.Expect(service.Unknown()).NotTo(ContainElement(ContainSubstring("/random/dev")))
}

// page is the address at which Pulumi Cloud shows the updates, without the number of the update.
const page = "http://app.pulumi.test/" + cloud.User + "/random/dev/updates/"

// serveCloud serves the service at an address that pods can reach, until the test ends, and returns the address.
func serveCloud(t *testing.T, g *WithT, service http.Handler) string {
	t.Helper()
	listener, err := system.Cluster.Listen("tcp", system.Cluster.NodeAddress+":0")
	g.Expect(err).NotTo(HaveOccurred())
	server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: service}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { _ = server.Close() })
	return "http://" + listener.Addr().String()
}

// restrictDefault makes the namespace default enforce the restricted profile, and creates in it what the backend needs.
func restrictDefault(ctx context.Context, g *WithT) {
	_, err := kubectl(ctx, "label", "namespace", "default", "pod-security.kubernetes.io/enforce=restricted")
	g.Expect(err).NotTo(HaveOccurred())
	equip(ctx, g, "default")
}

// threeUpdates waits for three updates: the first one, a requested one, and the resync. It returns their names.
func threeUpdates(t *testing.T, g *WithT) (names []string) {
	ctx := t.Context()
	begin := time.Now()
	first := awaitStack(ctx, g, walkthrough, func(g Gomega, stack *pulumiv1.Stack) {
		g.Expect(stack.Status.ObservedGeneration).To(Equal(stack.Generation), "%+v", stack.Status)
		g.Expect(stack.Status.LastUpdate).NotTo(BeNil(), "%+v", stack.Status)
		g.Expect(stack.Status.LastUpdate.State).To(Equal(pulumiv1.StackUpdateSucceeded), stack.Status.LastUpdate.Message)
	})
	t.Logf("from the Stack to the success: %s", time.Since(begin))
	second := request(ctx, g, walkthrough, "second")

	// Pretend that the five minutes of the resync interval are over.
	before := second.DeepCopy()
	second.Status.LastUpdate.LastResyncTime = metav1.NewTime(time.Now().Add(-5 * time.Minute))
	g.Expect(system.Client.Status().Patch(ctx, second, client.MergeFrom(before))).To(Succeed())
	// This annotation has no effect here, but its change causes a reconcile.
	change(ctx, g, walkthrough, func(stack *pulumiv1.Stack) {
		metav1.SetMetaDataAnnotation(&stack.ObjectMeta, pulumiv1.OrphanAnnotation, "false")
	})
	third := awaitStack(ctx, g, walkthrough, func(g Gomega, stack *pulumiv1.Stack) {
		g.Expect(stack.Status.LastUpdate.Name).NotTo(Equal(second.Status.LastUpdate.Name))
		g.Expect(stack.Status.CurrentUpdate).To(BeNil())
	})
	return []string{first.Status.LastUpdate.Name, second.Status.LastUpdate.Name, third.Status.LastUpdate.Name}
}

func checkWorkspaces(g *WithT, printed table) {
	image, address := system.Images.Pulumi.Reference, "random-yaml-workspace.default.svc.cluster.local:50051"
	g.Expect(printed.columns).To(Equal([]string{"NAME", "IMAGE", "READY", "ADDRESS"}))
	g.Expect(printed.order).To(Equal([]string{"random-yaml"}))
	rows := printed.rows["random-yaml"]
	g.Expect(rows[0]).To(Equal([]string{image, "", ""}))
	for _, row := range rows[1 : len(rows)-1] {
		g.Expect(row).To(Or(Equal([]string{image, "False", ""}), Equal([]string{image, "False", address})), "%v", rows)
	}
	g.Expect(rows[len(rows)-1]).To(Equal([]string{image, "True", address}), "%v", rows)
	g.Expect(len(rows)).To(BeNumerically(">", 2), "%v", rows)
}

func checkUpdates(g *WithT, printed table, names []string) {
	g.Expect(printed.columns).To(Equal([]string{"NAME", "WORKSPACE", "PROGRESSING", "FAILED", "COMPLETE", "URL"}))
	g.Expect(printed.order).To(Equal(names))
	waiting := []string{"random-yaml", "False", "False", "False", ""}
	url := func(i int) string { return page + strconv.Itoa(i+1) }
	for i, name := range names {
		rows := printed.rows[name]
		if i == 0 {
			// In the walkthrough the user watches the Updates when the workspace is ready. Before that, the first Update waits.
			rows = slices.DeleteFunc(rows, func(row []string) bool { return slices.Equal(row, waiting) })
		}
		// A long update has its permalink while it is still running.
		running := []string{"random-yaml", "True", "False", "False", url(i)}
		rows = slices.DeleteFunc(rows, func(row []string) bool { return slices.Equal(row, running) })
		g.Expect(rows).To(Equal([][]string{
			{"random-yaml", "", "", "", ""},
			{"random-yaml", "True", "False", "False", ""},
			{"random-yaml", "False", "False", "True", url(i)},
		}), name)
	}
}

// checkColumns reads the Stack as a user does after the walkthrough: the columns show the age of the last update and its permalink.
func checkColumns(ctx context.Context, g *WithT) {
	printed, err := kubectl(ctx, "get", "stack", "random-yaml")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(printed).To(MatchRegexp(`(?m)^NAME +LAST UPDATE +AGE +READY +RECONCILING +STALLED +PERMALINK\s*$`))
	g.Expect(printed).To(MatchRegexp(`(?m)^random-yaml +succeeded +\d+[smh]\S* +True +` + regexp.QuoteMeta(page) + `3\s*$`))
}

// checkStack compares the status with the status in the walkthrough: every field that the walkthrough shows is there, with the same value.
func checkStack(ctx context.Context, g *WithT, name string) {
	printed, err := kubectl(ctx, "get", "stack", "random-yaml", "-oyaml")
	g.Expect(err).NotTo(HaveOccurred())
	var stack struct {
		Metadata struct{ Generation int64 }
		Status   struct {
			Conditions         []metav1.Condition
			LastUpdate         map[string]any
			ObservedGeneration int64
			Outputs            map[string]json.RawMessage
		}
	}
	g.Expect(yaml.Unmarshal([]byte(printed), &stack)).To(Succeed())
	g.Expect(stack.Status.Conditions).To(HaveLen(1), printed)
	ready := stack.Status.Conditions[0]
	g.Expect([]string{ready.Type, string(ready.Status), ready.Reason}).To(Equal([]string{"Ready", "True", "ProcessingCompleted"}))
	// As with Flux's controllers, the message also contains the revision.
	g.Expect(ready.Message).To(HavePrefix("the stack has been processed and is up to date"))
	g.Expect(stack.Status.ObservedGeneration).To(Equal(stack.Metadata.Generation))
	g.Expect(stack.Status.Outputs).To(And(HaveLen(1), HaveKeyWithValue("password", json.RawMessage(`"[secret]"`))))
	g.Expect(printed).To(ContainSubstring("  outputs:\n    password: '[secret]'\n"))

	last := stack.Status.LastUpdate
	g.Expect(last).To(And(
		HaveKeyWithValue("generation", BeNumerically("==", stack.Metadata.Generation)),
		HaveKeyWithValue("lastAttemptedCommit", MatchRegexp("^sha256:[0-9a-f]{64}$")),
		HaveKeyWithValue("lastSuccessfulCommit", last["lastAttemptedCommit"]),
		HaveKey("lastResyncTime"),
		HaveKeyWithValue("name", name),
		HaveKeyWithValue("permalink", page+"3"),
		HaveKeyWithValue("state", "succeeded"),
		HaveKeyWithValue("type", "up")), printed)
	g.Expect(last["failures"]).To(Or(BeNil(), BeNumerically("==", 0)), printed)
}

// deleteStack ends the walkthrough: it deletes the Stack and expects that all its objects are removed, the deployed resource first.
func deleteStack(t *testing.T, g *WithT) {
	begin := time.Now()
	printed, err := kubectl(t.Context(), "delete", "stack", "random-yaml")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(printed).To(HavePrefix(`stack.pulumi.com "random-yaml" deleted`))
	g.Expect(exists(g, "random-password")).To(BeFalse())
	t.Logf("deleted after %s", time.Since(begin))
	for _, kind := range []string{"workspace", "update"} {
		eventually(t.Context(), g, func(g Gomega) {
			printed, err := kubectl(t.Context(), "get", kind)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(strings.TrimSpace(printed)).To(Equal("No resources found in default namespace."))
		})
	}
	awaitNone(t, g, walkthrough.Namespace, &corev1.PodList{})
	awaitNone(t, g, walkthrough.Namespace, &autov1alpha1.UpdateList{})
	t.Logf("everything gone after %s", time.Since(begin))
}

// table is the parsed output of "kubectl get --watch".
type table struct {
	columns []string
	// rows holds the rows by the name of the object, in the order in which they were printed, without repetitions. A row has the cells of
	// all columns but the first; a cell is empty if nothing was printed.
	rows map[string][][]string
	// order has the names in the order in which they appeared.
	order []string
}

// watchTable runs "kubectl get --watch" for the kind in the namespace, and returns when the watch has started. The returned function ends
// the command and returns what was printed.
func watchTable(ctx context.Context, g *WithT, namespace, kind string) func() table {
	watching, stop := context.WithCancel(ctx)
	// From this verbosity on, kubectl logs the responses that it receives.
	cmd, err := kubectlCommand(watching, "get", kind, "--namespace="+namespace, "--watch", "-v=6")
	g.Expect(err).NotTo(HaveOccurred())
	var printed bytes.Buffer
	answers := &lockedBuffer{}
	cmd.Stdout, cmd.Stderr = &printed, answers
	g.Expect(cmd.Start()).To(Succeed())
	eventually(ctx, g, func(g Gomega) { g.Expect(answers.String()).To(ContainSubstring("watch=true")) })
	return func() table {
		stop()
		_ = cmd.Wait() // the process is killed, so Wait always returns an error
		g.Expect(printed.String()).To(HaveSuffix("\n"))
		return parseTable(printed.String())
	}
}

// lockedBuffer is a buffer that can be read while it is written.
type lockedBuffer struct {
	mu     sync.Mutex
	buffer bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buffer.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buffer.String()
}

// parseTable parses columns that begin where their headers begin: kubectl prints the first row together with the header, and later cells
// are not wider than that, except in the last column.
func parseTable(printed string) table {
	lines := strings.Split(strings.TrimSuffix(printed, "\n"), "\n")
	header := lines[0]
	result := table{columns: strings.Fields(header), rows: map[string][][]string{}}
	var starts []int
	for _, column := range result.columns {
		starts = append(starts, strings.Index(header, column))
	}
	for _, line := range lines[1:] {
		cells := make([]string, len(starts))
		for i, start := range starts {
			end := len(line)
			if i+1 < len(starts) {
				end = min(end, starts[i+1])
			}
			if start < end {
				cells[i] = strings.TrimSpace(line[start:end])
			}
		}
		result.add(cells[0], cells[1:])
	}
	return result
}

func (t *table) add(name string, cells []string) {
	rows, known := t.rows[name]
	if !known {
		t.order = append(t.order, name)
	}
	if !known || strings.Join(rows[len(rows)-1], "|") != strings.Join(cells, "|") {
		t.rows[name] = append(rows, cells)
	}
}

const (
	// tutorialBegin is the heading after which the test runs the commands. The cluster of the tests already has what the tutorial installs
	// before it; TestFluxInstallsThePluginFromTheCatalog runs the command that installs the plugin.
	tutorialBegin = "\n## See a first Stack\n"
	// tutorialEnd is the first command that is not run.
	tutorialEnd = "```sh\nkind delete cluster\n"
	// tutorialNamespace is the namespace in the tutorial.
	tutorialNamespace = "tutorial"
)

// tutorialBlock matches a block of commands, and the output that the tutorial shows after the block, if there is one.
var tutorialBlock = regexp.MustCompile("(?s)```sh\n(.*?)```\n(?:(?:[^`]|`[^`])*?```text\n(.*?)```\n)?")

// tutorialReplacements replace what the tutorial downloads by what the cluster of the tests has.
var tutorialReplacements = [][2]string{
	{"type: random:RandomPet\n", "type: test:index:Sleep\n    options: {version: 0.1.0}\n"},
	{"length: 2\n", "seconds: 0\n"},
}

func TestTutorialWorksAsItIsWritten(t *testing.T) {
	suite.Long(t, "runs the commands of the tutorial")
	t.Parallel()
	g := NewWithT(t)
	for _, namespace := range []string{tutorialNamespace, "pulumi-quickstart"} {
		removeNamespaceAtEnd(t, g, namespace)
		provideVolume(t, g, namespace)
	}
	content, err := os.ReadFile(filepath.Join(tools.RepositoryRoot(), "docs", "guides", "tutorial.md"))
	g.Expect(err).NotTo(HaveOccurred())
	// A new repository, with a first commit.
	repository, _, err := system.Git.Create("tutorial/pet", gitserver.Files{"README.md": "# pet\n"})
	g.Expect(err).NotTo(HaveOccurred())
	before, commands, found := strings.Cut(string(content), tutorialBegin)
	g.Expect(found).To(BeTrue())
	g.Expect(tutorialBlock.FindAllString(before, -1)).To(HaveLen(2), "with the next block, there is a first Stack: it should take five at most")
	commands, _, found = strings.Cut(commands, tutorialEnd)
	g.Expect(found).To(BeTrue())
	version, err := tools.Version("pulumi")
	g.Expect(err).NotTo(HaveOccurred())
	image := "pulumi/pulumi:" + strings.TrimPrefix(version, "v") + "-nonroot"
	for _, replacement := range append(tutorialReplacements, [2]string{image, system.Images.Pulumi.Reference},
		[2]string{"https://github.com/you/pet\n", repository.URL + "\n"},
		[2]string{"flux pulumi quickstart\n", "flux pulumi quickstart --image=" + system.Images.Pulumi.Reference + "\n"},
		[2]string{"image: busybox:1.37\n", "image: " + system.Images.Busybox.Reference + "\n      imagePullPolicy: Never\n"}) {
		g.Expect(commands).To(ContainSubstring(replacement[0]))
		commands = strings.ReplaceAll(commands, replacement[0], replacement[1])
	}
	plugin, dir := buildCommandLine(t, g, "flux-pulumi"), t.TempDir()
	outputs := 0
	for _, block := range tutorialBlock.FindAllStringSubmatch(commands, -1) {
		printed, err := shell(t.Context(), dir, filepath.Dir(plugin), block[1])
		if err != nil {
			// If an event did not arrive, these logs show how far it came.
			logs, _ := shell(t.Context(), dir, filepath.Dir(plugin), "kubectl logs deployment/notification-controller --namespace flux-system --tail=50\n"+
				"kubectl get events --namespace "+tutorialNamespace)
			t.Log(logs)
		}
		g.Expect(err).NotTo(HaveOccurred(), "%s\n%s", block[1], printed)
		if block[2] != "" {
			outputs++
			g.Expect(printed).To(MatchRegexp(shown.Replace(regexp.QuoteMeta(strings.TrimSpace(block[2])))), block[1])
		}
	}
	g.Expect(outputs).To(Equal(4))
}

// shown turns an output that the tutorial shows into a regular expression: "…" stands for omitted text in a line, or for omitted lines.
var shown = strings.NewReplacer("\n…\n", "\n(?s:.*)", "…", ".*")

// provideVolume creates the volume for the claim of the tutorial, as a storage class does in other clusters.
func provideVolume(t *testing.T, g *WithT, namespace string) {
	volume := &corev1.PersistentVolume{
		Name: namespace,
		Spec: corev1.PersistentVolumeSpec{
			Capacity:                      corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")},
			AccessModes:                   []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
			ClaimRef:                      &corev1.ObjectReference{Namespace: namespace, Name: "state"},
			PersistentVolumeSource:        corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: system.StateDir()}},
		},
	}
	g.Expect(system.Client.Create(t.Context(), volume)).To(Succeed())
	t.Cleanup(func() { g.Expect(system.Client.Delete(context.Background(), volume)).To(Succeed()) })
}

// shell runs shell commands in the directory dir. They call kubectl as administrator, and git as a user without configuration. kubectl and
// flux find their plugins in the directory plugins. It returns all that the commands print.
func shell(ctx context.Context, dir, plugins, commands string) (string, error) {
	kubectl, err := tools.Path(ctx, "kubectl", nil)
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, 2*patience)
	defer cancel()
	script := fmt.Sprintf("set -eu\nkubectl() { %q \"$@\"; }\nflux() { plugin=$1; shift; \"flux-$plugin\" \"$@\"; }\n%s", kubectl, commands)
	cmd := system.Cluster.Command(ctx, "sh", "-c", script)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+system.Cluster.KubeconfigPath, "KUBECACHEDIR="+filepath.Join(system.Cluster.Dir, "kubectl"),
		"PATH="+plugins+":"+os.Getenv("PATH"), "HOME="+dir, "GIT_CONFIG_NOSYSTEM=1", "GIT_AUTHOR_NAME=you", "GIT_AUTHOR_EMAIL=you@example.com",
		"GIT_COMMITTER_NAME=you", "GIT_COMMITTER_EMAIL=you@example.com")
	cmd.Dir = dir
	output, err := cmd.CombinedOutput()
	return string(output), err
}
