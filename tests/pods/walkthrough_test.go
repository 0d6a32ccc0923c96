package pods_test

import (
	"context"
	"encoding/json"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/cloud"
	"github.com/stack-controller/stack-controller/tests/gitserver"
	"github.com/stack-controller/stack-controller/tests/suite"
)

// walkthrough is the Stack of the walkthrough.
var walkthrough = client.ObjectKey{Namespace: "default", Name: "random-yaml"}

// TestWalkthrough is what people who come from the Pulumi Kubernetes Operator read and type: its walkthrough, step by step.
// Only the addresses of the repository and of Pulumi Cloud, and the image, are others.
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

// page is what Pulumi Cloud shows of the updates, without their numbers.
const page = "http://app.pulumi.test/" + cloud.User + "/random/dev/updates/"

// serveCloud makes the service one that pods reach, until the test ends, and returns its address.
func serveCloud(t *testing.T, g *WithT, service http.Handler) string {
	t.Helper()
	listener, err := system.Cluster.Listen("tcp", system.Cluster.NodeAddress+":0")
	g.Expect(err).NotTo(HaveOccurred())
	server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: service}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { _ = server.Close() })
	return "http://" + listener.Addr().String()
}

// restrictDefault makes the namespace default one that enforces the restricted profile, with what the state needs.
func restrictDefault(ctx context.Context, g *WithT) {
	_, err := kubectl(ctx, "label", "namespace", "default", "pod-security.kubernetes.io/enforce=restricted")
	g.Expect(err).NotTo(HaveOccurred())
	equip(ctx, g, "default")
}

// threeUpdates waits for three updates: the first one, one that is asked for, and the resync. It returns their names.
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

	// The five minutes are over.
	before := second.DeepCopy()
	second.Status.LastUpdate.LastResyncTime = metav1.NewTime(time.Now().Add(-5 * time.Minute))
	g.Expect(system.Client.Status().Patch(ctx, second, client.MergeFrom(before))).To(Succeed())
	// An annotation that means nothing here makes the controller look.
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
			// The walkthrough looks when the workspace is ready already. Until then its first update waits.
			rows = slices.DeleteFunc(rows, func(row []string) bool { return slices.Equal(row, waiting) })
		}
		// A long update has its page while it runs already.
		running := []string{"random-yaml", "True", "False", "False", url(i)}
		rows = slices.DeleteFunc(rows, func(row []string) bool { return slices.Equal(row, running) })
		g.Expect(rows).To(Equal([][]string{
			{"random-yaml", "", "", "", ""},
			{"random-yaml", "True", "False", "False", ""},
			{"random-yaml", "False", "False", "True", url(i)},
		}), name)
	}
}

// checkColumns looks at the Stack as one does after the walkthrough: how old the last update is, and where its page is.
func checkColumns(ctx context.Context, g *WithT) {
	printed, err := kubectl(ctx, "get", "stack", "random-yaml")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(printed).To(MatchRegexp(`(?m)^NAME +LAST UPDATE +AGE +READY +RECONCILING +STALLED +PERMALINK\s*$`))
	g.Expect(printed).To(MatchRegexp(`(?m)^random-yaml +succeeded +\d+[smh]\S* +True +` + regexp.QuoteMeta(page) + `3\s*$`))
}

// checkStack compares the status with that of the walkthrough: what stands there is there, and says the same.
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
	// As Flux's controllers do, it also says which revision that is.
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

// deleteStack ends the walkthrough: everything goes, the deployed resource first.
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
