package monitoring_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/framework/suite"
	"github.com/stack-controller/stack-controller/tests/framework/systemtest"
	"github.com/stack-controller/stack-controller/tests/tools"
)

// TestProgramOfTheGuidePromotesAWaveWhenPrometheusSaysSo runs the program in the CronJob of the guide as its ServiceAccount, against a real
// Prometheus.
func TestProgramOfTheGuidePromotesAWaveWhenPrometheusSaysSo(t *testing.T) {
	suite.Long(t, "runs Prometheus")
	g, ctx := NewWithT(t), t.Context()
	s := systemtest.New(t, system, "promoted", patience)
	app, stack, err := system.Provide(ctx, s.Name, systemtest.Returning(s.Name, 1))
	g.Expect(err).NotTo(HaveOccurred())
	stack.Spec.RolloutRef = &pulumiv1.RolloutReference{Name: "fleet"}
	rollout := &autov1alpha1.StackRollout{ObjectMeta: s.Meta("fleet"), Spec: autov1alpha1.StackRolloutSpec{
		SourceRef: autov1alpha1.RolloutSource{Kind: sourcev1.GitRepositoryKind, Name: app.Name},
		Waves:     []autov1alpha1.RolloutWave{{Name: "rest", Promotion: autov1alpha1.PromoteManual}},
	}}
	s.Create(rollout, stack)
	eventually(g, func() string { s.Get("fleet", rollout); return conditions.GetReason(rollout, meta.ReadyCondition) }).
		Should(Equal(autov1alpha1.PromotionRequiredReason))

	role, err := os.ReadFile(inRepository("config", "rbac", "approver_role.yaml"))
	g.Expect(err).NotTo(HaveOccurred())
	container, manifests := promoter(g, s.Name)
	_, err = system.ControlPlane.KubectlInput(ctx, string(role)+"---\n"+manifests, "apply", "--server-side", "--filename=-")
	g.Expect(err).NotTo(HaveOccurred())
	account, err := system.ControlPlane.ServiceAccountConfig(ctx, s.Name, "promoter")
	g.Expect(err).NotTo(HaveOccurred())
	kubeconfig, err := system.ControlPlane.WriteKubeconfig("promoter", account)
	g.Expect(err).NotTo(HaveOccurred())
	kubectl, err := tools.Path(ctx, "kubectl", nil)
	g.Expect(err).NotTo(HaveOccurred())
	// In a pod, kubectl finds the namespace and the token by itself.
	bin := t.TempDir()
	wrapper := "#!/bin/sh\nexec '" + kubectl + "' --namespace=" + s.Name + ` "$@"` + "\n"
	g.Expect(os.WriteFile(filepath.Join(bin, "kubectl"), []byte(wrapper), 0o755)).To(Succeed())
	run := func(prometheus, query string) (string, error) {
		cmd := exec.CommandContext(ctx, container.Command[0], append(slices.Clone(container.Command[1:]), container.Args...)...)
		cmd.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"), "KUBECONFIG="+kubeconfig, "KUBECACHEDIR="+bin, "PROMETHEUS="+prometheus, "QUERY="+query)
		output, err := cmd.CombinedOutput()
		return string(output), err
	}
	approvals := func() []autov1alpha1.Approval {
		list := &autov1alpha1.ApprovalList{}
		g.Expect(system.Client.List(ctx, list, client.InNamespace(s.Name))).To(Succeed())
		return list.Items
	}

	// Prometheus has no requests, then too many failures, then does not answer.
	for _, query := range []string{container.Env[1].Value, "vector(0.5) < 0.001"} {
		output, err := run("http://"+observed.address, query)
		g.Expect(err).NotTo(HaveOccurred(), output)
	}
	output, err := run("http://"+observed.address+"/nowhere", "vector(0)")
	g.Expect(err).To(HaveOccurred(), output)
	g.Expect(approvals()).To(BeEmpty())

	output, err = run("http://"+observed.address, "vector(0) < 0.001")
	g.Expect(err).NotTo(HaveOccurred(), output)
	g.Expect(approvals()).To(HaveLen(1))
	s.AwaitStack(stack.Name, systemtest.Showing("1"))
	eventually(g, func() bool { s.Get("fleet", rollout); return conditions.IsTrue(rollout, autov1alpha1.RolloutComplete) }).Should(BeTrue())
	output, err = run("http://"+observed.address, "vector(0) < 0.001")
	g.Expect(err).NotTo(HaveOccurred(), output)
	g.Expect(approvals()).To(HaveLen(1), "nothing waits for it")
}

// promoter returns the container of the CronJob of the guide, and its other objects, in the namespace.
func promoter(g *WithT, namespace string) (container corev1.Container, manifests string) {
	guide, err := os.ReadFile(inRepository("docs", "guides", "waves.md"))
	g.Expect(err).NotTo(HaveOccurred())
	blocks := regexp.MustCompile("(?ms)^```yaml\n(.*?)^```$").FindAllStringSubmatch(string(guide), -1)
	for _, block := range blocks {
		text := strings.NewReplacer("namespace: default", "namespace: "+namespace, "serviceaccount:default:", "serviceaccount:"+namespace+":").Replace(block[1])
		others, job, found := strings.Cut(text, "---\napiVersion: batch/v1\n")
		if !found {
			continue
		}
		cron := &batchv1.CronJob{}
		g.Expect(yaml.UnmarshalStrict([]byte("apiVersion: batch/v1\n"+job), cron)).To(Succeed())
		containers := cron.Spec.JobTemplate.Spec.Template.Spec.Containers
		g.Expect(containers).To(HaveLen(1))
		g.Expect(containers[0].Env[1].Name).To(Equal("QUERY"))
		return containers[0], others
	}
	g.Expect(blocks).To(ContainElement("one with a CronJob"))
	return container, manifests
}
