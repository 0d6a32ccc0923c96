package update

import (
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	"github.com/stack-controller/stack-controller/internal/agent/proto"
)

func TestOutputKeys(t *testing.T) {
	tests := map[string]struct {
		names []string
		want  map[string]string
	}{
		"valid names stay":             {[]string{"url", "a.b-c_D"}, map[string]string{"url": "url", "a.b-c_D": "a.b-c_D"}},
		"other characters are cleaned": {[]string{"my url"}, map[string]string{"my url": "my_url"}},
		"dots alone are not a key":     {[]string{".", "..", "..x"}, map[string]string{"..x": "__x", ".": "_", "..": "__"}},
		"no name at all":               {[]string{""}, map[string]string{"": "_"}},
		"a valid name has precedence":  {[]string{"a/b", "a_b"}, map[string]string{"a_b": "a_b"}},
		"nobody wins among invalid":    {[]string{"a/b", "a:b"}, map[string]string{}},
		"long names differ at the end": {[]string{strings.Repeat("x", 300) + "1", strings.Repeat("x", 300) + "2"}, map[string]string{}},
		"what looks like a hashed key": {[]string{"a/b", "a_b", hashed("a/ba_b", "a_b", 253)}, map[string]string{"a_b": "a_b"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			keys := outputKeys(slices.Clone(tt.names))
			g.Expect(keys).To(HaveLen(len(tt.names)))
			seen := map[string]bool{}
			for name, key := range keys {
				g.Expect(validation.IsConfigMapKey(key)).To(BeEmpty(), key)
				g.Expect(seen[key]).To(BeFalse(), "%q is the key of two outputs", key)
				seen[key] = true
				if want, fixed := tt.want[name]; fixed {
					g.Expect(key).To(Equal(want))
				} else {
					g.Expect(key).To(MatchRegexp("-[0-9a-f]{16}$"))
				}
			}
			slices.Reverse(tt.names)
			g.Expect(outputKeys(tt.names)).To(Equal(keys), "the order of names has no influence")
		})
	}
}

func TestOutputsSecretNamesItsSecretKeys(t *testing.T) {
	g := NewWithT(t)
	update := &autov1alpha1.Update{ObjectMeta: metav1.ObjectMeta{Name: "up", Namespace: "ns", UID: "1"}}
	secret, size, err := outputsSecret(update, map[string]*proto.Output{
		"url":       {Value: []byte(`"http://x"`)},
		"the token": {Value: []byte(`"t0ken"`), Secret: true},
		"key":       {Value: []byte(`{"a":1}`), Secret: true},
	})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(size).To(Equal(24))
	g.Expect(secret.Name).To(Equal("up-stack-outputs"))
	g.Expect(secret.Namespace).To(Equal("ns"))
	g.Expect(*secret.Immutable).To(BeTrue())
	g.Expect(secret.Data).To(Equal(map[string][]byte{"url": []byte(`"http://x"`), "the_token": []byte(`"t0ken"`), "key": []byte(`{"a":1}`)}))
	// The keys of the Secret, so that whoever masks by them misses none.
	g.Expect(secret.Annotations).To(HaveKeyWithValue("pulumi.com/secrets", `["key","the_token"]`))
	g.Expect(secret.Labels).To(Equal(map[string]string{"auto.pulumi.com/component": "update", "auto.pulumi.com/update-name": "up"}))
	g.Expect(metav1.IsControlledBy(secret, update)).To(BeTrue())
}

func TestOutputsSecretOfALongUpdateNameIsValid(t *testing.T) {
	g := NewWithT(t)
	update := &autov1alpha1.Update{ObjectMeta: metav1.ObjectMeta{Name: strings.Repeat("a.", 126) + "a", UID: "1"}}
	secret, _, err := outputsSecret(update, nil)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(validation.IsDNS1123Subdomain(secret.Name)).To(BeEmpty())
	g.Expect(validation.IsValidLabelValue(secret.Labels[autov1alpha1.UpdateNameLabel])).To(BeEmpty())
	g.Expect(secret.Annotations).To(HaveKeyWithValue("pulumi.com/secrets", `[]`))
}

func TestOnlyUpAndRefreshKeepOutputs(t *testing.T) {
	g := NewWithT(t)
	operation := &proto.Operation{State: proto.OperationState_OPERATION_STATE_SUCCEEDED, Outputs: map[string]*proto.Output{"x": {}}}
	for kind, want := range map[proto.OperationKind]bool{
		proto.OperationKind_OPERATION_KIND_PREVIEW: false,
		proto.OperationKind_OPERATION_KIND_UP:      true,
		proto.OperationKind_OPERATION_KIND_REFRESH: true,
		proto.OperationKind_OPERATION_KIND_DESTROY: false,
	} {
		operation.Kind = kind
		g.Expect(hasOutputs(operation)).To(Equal(want), kind.String())
	}
	operation.Kind, operation.State = proto.OperationKind_OPERATION_KIND_UP, proto.OperationState_OPERATION_STATE_FAILED
	g.Expect(hasOutputs(operation)).To(BeFalse())
}
