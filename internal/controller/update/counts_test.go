package update

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"google.golang.org/grpc/mem"
	gproto "google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
	"github.com/stack-controller/stack-controller/internal/controller/inputs"
	"github.com/stack-controller/stack-controller/internal/informercache"
	"github.com/stack-controller/stack-controller/internal/jsonparts"
)

// numbered returns the results for the numbers from 0 to n-1.
func numbered[T any](n int, item func(i int) T) []T {
	items := make([]T, n)
	for i := range items {
		items[i] = item(i)
	}
	return items
}

func TestOneMoreThanAnOperationMayHaveIsRefused(t *testing.T) {
	jsonValue := func(document string) []autov1alpha1.ConfigItem {
		return []autov1alpha1.ConfigItem{{Key: "c", Value: &apiextensionsv1.JSON{Raw: []byte(document)}}}
	}
	number := func(i int) string { return strconv.Itoa(1_000_000 + i) }
	// A variable with 64 KiB, as Linux counts them.
	variable := func(i int) corev1.EnvVar {
		name := strconv.Itoa(10_000 + i)
		return corev1.EnvVar{Name: name, Value: strings.Repeat("x", 64<<10-len(name)-len("=\x00")-pointerSize)}
	}
	type spec struct {
		workspace autov1alpha1.WorkspaceSpec
		stack     autov1alpha1.WorkspaceStack
		update    autov1alpha1.UpdateSpec
	}
	const entries = "the operation has more than 10000 environment variables, configuration values, imported environments, targets and replacements"
	for name, test := range map[string]struct {
		// bound is how many are accepted.
		bound   int
		spec    func(n int) spec
		refusal string
	}{
		"environment variables": {maxEntries, func(n int) (s spec) {
			s.workspace.Env = numbered(n, func(i int) corev1.EnvVar { return corev1.EnvVar{Name: "V" + number(i)} })
			return s
		}, "with the environment variables of the workspace, " + entries},
		"configuration values": {maxEntries, func(n int) (s spec) {
			s.stack.Config = numbered(n, func(i int) autov1alpha1.ConfigItem {
				return autov1alpha1.ConfigItem{Key: number(i), Value: &apiextensionsv1.JSON{Raw: []byte("1")}}
			})
			return s
		}, "with 10001 configuration values, " + entries},
		"imported environments": {maxEntries, func(n int) (s spec) {
			s.stack.Environment = numbered(n, number)
			return s
		}, "with 10001 imported environments, " + entries},
		"targets": {maxEntries, func(n int) (s spec) {
			s.update.Target = numbered(n, number)
			return s
		}, "with 10001 targets, " + entries},
		"excluded resources": {maxEntries, func(n int) (s spec) {
			s.update.Exclude = numbered(n, number)
			return s
		}, "with 10001 excluded resources, " + entries},
		"replacements": {maxEntries, func(n int) (s spec) {
			s.update.Replace = numbered(n, number)
			return s
		}, "with 10001 replacements, " + entries},
		"entries of any kind": {maxEntries - 4, func(n int) (s spec) {
			s.workspace.Env, s.stack.Environment = []corev1.EnvVar{{Name: "A"}, {Name: "A"}}, []string{"e"}
			s.update.Target, s.update.Replace = []string{"t"}, []string{"r"}
			s.stack.Config = numbered(n, func(i int) autov1alpha1.ConfigItem {
				return autov1alpha1.ConfigItem{Key: number(i), Value: &apiextensionsv1.JSON{Raw: []byte(`""`)}}
			})
			return s
		}, entries},
		"bytes of the environment": {maxProcess >> 16, func(n int) (s spec) {
			s.workspace.Env = numbered(n, variable)
			return s
		}, "have more than 2 MiB, and Linux starts no program with more"},
		"bytes of variables of which each replaces another": {maxValues>>16 - 1, func(n int) (s spec) {
			s.workspace.Env = numbered(n, func(i int) corev1.EnvVar { return variable(i % 10) })
			return s
		}, "the environment and the configuration of the operation have more than 8 MiB"},
		"bytes of the targets": {maxProcess >> 10, func(n int) (s spec) {
			s.update.Target = numbered(n, func(int) string { return strings.Repeat("x", 1<<10-len("--replace=\x00")-pointerSize) })
			return s
		}, "with the targets, excluded resources and replacements, the environment"},
		"keys and values of a structured value": {jsonparts.MaxParts, func(n int) (s spec) {
			s.stack.Config = jsonValue("[0" + strings.Repeat(",0", n-2) + "]")
			return s
		}, `with configuration key "c", the structured values of the configuration have more than 100000 keys and values`},
		"levels of a structured value": {jsonparts.MaxDepth, func(n int) (s spec) {
			s.stack.Config = jsonValue(strings.Repeat("[", n) + strings.Repeat("]", n))
			return s
		}, `the value of configuration key "c" is nested more than 100 levels deep`},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			describe := func(n int) error {
				spec := test.spec(n)
				spec.stack.Name, spec.update.StackName, spec.update.Type = "dev", "dev", autov1alpha1.UpdateTypeUp
				spec.workspace.Local, spec.workspace.Stacks = &autov1alpha1.LocalSource{}, []autov1alpha1.WorkspaceStack{{Name: "other"}, spec.stack}
				o := &observation{workspace: &autov1alpha1.Workspace{Spec: spec.workspace}, update: &autov1alpha1.Update{Spec: spec.update}}
				request, err := describeOperation(t.Context(), o, &inputReader{Reader: inputs.Reader{Namespace: "team"}})
				if err == nil {
					expectAccepted(g, request)
				}
				return err
			}
			g.Expect(describe(test.bound)).To(Succeed())
			err := describe(test.bound + 1)
			g.Expect(err).To(BeAssignableToTypeOf(&inputs.InvalidError{}))
			g.Expect(err).To(MatchError(ContainSubstring(test.refusal)))
		})
	}
}

// expectAccepted checks that an agent decodes the request.
func expectAccepted(g *WithT, request *agentpb.StartOperationRequest) {
	content, err := gproto.Marshal(request)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(len(content)).To(BeNumerically("<", agentpb.MaxMessageSize))
	codec := &agentpb.Codec{MaxFields: agentpb.MaxRequestFields}
	g.Expect(codec.Unmarshal(mem.BufferSlice{mem.SliceBuffer(content)}, &agentpb.StartOperationRequest{})).To(Succeed())
}

// tooLarge is a reader that refuses each object.
type tooLarge struct{ ctrlclient.Reader }

func (tooLarge) Get(context.Context, ctrlclient.ObjectKey, ctrlclient.Object, ...ctrlclient.GetOption) error {
	return fmt.Errorf("read: %w", &informercache.TooLargeError{Kind: "ConfigMap"})
}

func TestObjectThatIsTooLargeIsNamed(t *testing.T) {
	g := NewWithT(t)
	workspace := &autov1alpha1.Workspace{Spec: autov1alpha1.WorkspaceSpec{EnvFrom: []corev1.EnvFromSource{
		{ConfigMapRef: &corev1.ConfigMapEnvSource{Name: "many"}},
	}}}
	_, err := (&inputReader{Reader: inputs.Reader{APIReader: tooLarge{}, Namespace: "team"}}).environment(t.Context(), workspace)
	g.Expect(err).To(BeAssignableToTypeOf(&inputs.InvalidError{}))
	g.Expect(err).To(MatchError(HavePrefix(`configmap "many", which the operation uses, takes more than 4 MiB of memory`)))
}
