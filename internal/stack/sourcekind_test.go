package stack

import (
	"net/http"
	"strings"
	"sync"
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

// requestLog notes which Secrets a client asks an API server for with what is in them.
type requestLog struct {
	http.RoundTripper
	mu   *sync.Mutex
	read *[]string
}

// RoundTrip implements http.RoundTripper.
func (l requestLog) RoundTrip(request *http.Request) (*http.Response, error) {
	if strings.Contains(request.URL.Path, "/secrets") && !strings.Contains(request.Header.Get("Accept"), "as=PartialObjectMetadata") {
		l.mu.Lock()
		*l.read = append(*l.read, request.Method+" "+request.URL.String())
		l.mu.Unlock()
	}
	return l.RoundTripper.RoundTrip(request)
}

func TestNobodyMakesTheControllerReadSecretsByNamingOneAsASource(t *testing.T) {
	s := newStage(t)
	s.newSecret("payload", nil)
	stack := &pulumiv1.Stack{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: "app"}, Spec: pulumiv1.StackSpec{
		Stack:      "dev",
		FluxSource: &pulumiv1.FluxSource{SourceRef: pulumiv1.FluxSourceReference{APIVersion: "v1", Kind: "Secret", Name: "payload"}},
	}}
	withImage("one")(stack)
	s.Expect(s.client.Create(t.Context(), stack)).To(Succeed())
	refused := s.await(stack, reasonIs(meta.StalledCondition, pulumiv1.SpecInvalidReason))
	s.Expect(conditions.GetMessage(refused, meta.ReadyCondition)).To(ContainSubstring("spec.fluxSource.sourceRef: Secret"))
	s.Consistently(s.secretsRead, "1s").Should(BeEmpty())

	before := refused.DeepCopy()
	refused.Spec.FluxSource = nil
	s.Expect(s.client.Patch(t.Context(), refused, client.MergeFrom(before))).To(Succeed())
	s.await(stack, func(stack *pulumiv1.Stack) bool {
		return !conditions.IsStalled(stack) && stack.Status.CurrentUpdate != nil
	})
	s.Expect(s.secretsRead()).To(BeEmpty())
}
