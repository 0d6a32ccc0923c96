package pods_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/stack-controller/stack-controller/tests/suite"
	"github.com/stack-controller/stack-controller/tests/tools"
)

const (
	// tutorialBegin is the heading from which on the commands are run: the cluster of the tests has what is installed before.
	tutorialBegin = "\n## Create a namespace, a Secret and a volume\n"
	// tutorialEnd is the first command that is not run.
	tutorialEnd = "```sh\nkind delete cluster\n"
	// tutorialNamespace is the namespace in the tutorial.
	tutorialNamespace = "tutorial"
)

// tutorialBlock is a block of commands, and the output that the tutorial shows after it, if it does.
var tutorialBlock = regexp.MustCompile("(?s)```sh\n(.*?)```\n(?:(?:[^`]|`[^`])*?```text\n(.*?)```\n)?")

// tutorialReplacements put what the cluster of the tests has in place of what has to be downloaded.
var tutorialReplacements = [][2]string{
	{"type: random:RandomPet\n", "type: test:index:Sleep\n      options: {version: 0.1.0}\n"},
	{"length: 2\n", "seconds: 0\n"},
}

func TestTutorialWorksAsItIsWritten(t *testing.T) {
	suite.Long(t, "runs the commands of the tutorial")
	t.Parallel()
	g := NewWithT(t)
	removeNamespaceAtEnd(t, g, tutorialNamespace)
	provideVolume(t, g)
	content, err := os.ReadFile(filepath.Join(tools.RepositoryRoot(), "docs", "guides", "tutorial.md"))
	g.Expect(err).NotTo(HaveOccurred())
	_, commands, found := strings.Cut(string(content), tutorialBegin)
	g.Expect(found).To(BeTrue())
	commands, _, found = strings.Cut(commands, tutorialEnd)
	g.Expect(found).To(BeTrue())
	for _, replacement := range append(tutorialReplacements, [2]string{"pulumi/pulumi:3.250.0-nonroot", system.Images.Pulumi.Reference},
		[2]string{"image: busybox:1.37\n", "image: " + system.Images.Busybox.Reference + "\n      imagePullPolicy: Never\n"}) {
		g.Expect(commands).To(ContainSubstring(replacement[0]))
		commands = strings.ReplaceAll(commands, replacement[0], replacement[1])
	}
	plugin := buildCommandLine(t, g, "kubectl-pulumi")
	outputs := 0
	for _, block := range tutorialBlock.FindAllStringSubmatch(commands, -1) {
		printed, err := shell(t.Context(), filepath.Dir(plugin), block[1])
		g.Expect(err).NotTo(HaveOccurred(), "%s\n%s", block[1], printed)
		if block[2] != "" {
			outputs++
			g.Expect(printed).To(MatchRegexp(shown.Replace(regexp.QuoteMeta(strings.TrimSpace(block[2])))), block[1])
		}
	}
	g.Expect(outputs).To(Equal(3))
}

// shown makes an expression of an output that the tutorial shows: what it leaves out in a line, or as whole lines.
var shown = strings.NewReplacer("\n…\n", "\n(?s:.*)", "…", ".*")

// provideVolume creates the volume for the claim of the tutorial, as a storage class does in other clusters.
func provideVolume(t *testing.T, g *WithT) {
	volume := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "tutorial"},
		Spec: corev1.PersistentVolumeSpec{
			Capacity:                      corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")},
			AccessModes:                   []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
			ClaimRef:                      &corev1.ObjectReference{Namespace: tutorialNamespace, Name: "state"},
			PersistentVolumeSource:        corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: system.StateDir()}},
		},
	}
	g.Expect(system.Client.Create(t.Context(), volume)).To(Succeed())
	t.Cleanup(func() { g.Expect(system.Client.Delete(context.Background(), volume)).To(Succeed()) })
}

// shell runs commands that call kubectl, which finds plugins in the directory, as administrator, and returns all that they print.
func shell(ctx context.Context, plugins, commands string) (string, error) {
	kubectl, err := tools.Path(ctx, "kubectl", nil)
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, 2*patience)
	defer cancel()
	script := fmt.Sprintf("set -eu\nkubectl() { %q \"$@\"; }\n%s", kubectl, commands)
	cmd := system.Cluster.Command(ctx, "sh", "-c", script)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+system.Cluster.KubeconfigPath, "KUBECACHEDIR="+filepath.Join(system.Cluster.Dir, "kubectl"),
		"PATH="+plugins+":"+os.Getenv("PATH"))
	output, err := cmd.CombinedOutput()
	return string(output), err
}
