package migration_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	. "github.com/onsi/gomega"

	"github.com/stack-controller/stack-controller/tests/tools"
)

// guide is the page whose commands are run, relative to the root of the repository.
const guide = "docs/guides/migration.md"

var shellBlock = regexp.MustCompile("(?ms)^ *```sh\n(.*?)^ *```$")

// commandsOf returns the blocks of shell commands in a section of the guide, in their order.
func commandsOf(g *WithT, section string) (blocks []string) {
	content, err := os.ReadFile(filepath.Join(tools.RepositoryRoot(), filepath.FromSlash(guide)))
	g.Expect(err).NotTo(HaveOccurred())
	_, text, found := strings.Cut(string(content), "\n## "+section+"\n")
	g.Expect(found).To(BeTrue(), "no section %q", section)
	text, _, _ = strings.Cut(text, "\n## ")
	for _, match := range shellBlock.FindAllStringSubmatch(text, -1) {
		blocks = append(blocks, match[1])
	}
	return blocks
}

// shell runs commands of the guide as its reader would: the words that stand for something of theirs are replaced. What only a cluster
// with nodes can do is done here: a watch ends at once, and a pod of stack-controller is a process with its ServiceAccount, which
// prints its log when it runs and is gone when it has ended.
type shell struct {
	dir          string
	placeholders *strings.Replacer
}

// newShell makes a kubectl for the guide.
func newShell(ctx context.Context, g *WithT, dir, definitions string) *shell {
	kubectl, err := tools.Path(ctx, "kubectl", nil)
	g.Expect(err).NotTo(HaveOccurred())
	script := fmt.Sprintf(`#!/bin/bash
set -eu
[[ "${*:1:2}" != "logs hand-back" && "${*:1:3}" != "delete pod hand-back" ]] || exit 0
args=()
for arg in "$@"; do
	case "$arg" in
	--watch) ;;
	--) [[ $1 == run ]] && { shift "$((${#args[@]} + 1))"; KUBECONFIG=%q exec %q "$@"; } ;;
	esac
	[[ $arg == --watch ]] || args+=("$arg")
done
exec %q "${args[@]}"
`, controllerKubeconfig, controllerBinary, kubectl)
	bin := filepath.Join(dir, "bin")
	g.Expect(os.MkdirAll(bin, 0o755)).To(Succeed())
	g.Expect(os.WriteFile(filepath.Join(bin, "kubectl"), []byte(script), 0o755)).To(Succeed())
	return &shell{dir: dir, placeholders: strings.NewReplacer(
		"stack/NAME", "stack/ready-flux --namespace "+namespace, "stack NAME", "stack ready-flux --namespace "+namespace,
		"deployment NAME --namespace NAMESPACE", "deployment pulumi-kubernetes-operator --namespace "+operatorNamespace,
		"pods --namespace NAMESPACE", "pods --namespace "+operatorNamespace,
		"--all --namespace NAMESPACE", "--all --namespace "+namespace,
		"CRDS", definitions,
	)}
}

// run runs a block and returns what it prints. A block that does not end fails.
func (s *shell) run(ctx context.Context, g *WithT, block string) string {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	block = s.placeholders.Replace(block)
	g.Expect(block).NotTo(MatchRegexp(`(?m)[ /=](NAME|NAMESPACE|CRDS)( |$)`))
	cmd := exec.CommandContext(ctx, "bash", "-eu", "-c", block)
	cmd.WaitDelay = time.Second
	cmd.Dir = s.dir
	cmd.Env = append(os.Environ(), "KUBECONFIG="+system.ControlPlane.KubeconfigPath, "PATH="+filepath.Join(s.dir, "bin")+":"+os.Getenv("PATH"),
		"KUBECACHEDIR="+filepath.Join(s.dir, "cache"))
	output, err := cmd.CombinedOutput()
	g.Expect(err).NotTo(HaveOccurred(), "%s\n%s", block, output)
	return string(output)
}
