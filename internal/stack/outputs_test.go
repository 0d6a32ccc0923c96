package stack

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// outputsOf is the Secret with the outputs of an Update.
func outputsOf(data map[string]string, annotations map[string]string) *corev1.Secret {
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "app-1-stack-outputs", Annotations: annotations}, Data: map[string][]byte{}}
	for key, value := range data {
		secret.Data[key] = []byte(value)
	}
	return secret
}

func TestOutputsAreShownUnderTheirNamesAndMasked(t *testing.T) {
	g := NewWithT(t)
	outputs, err := shownOutputs(outputsOf(
		map[string]string{"url": `"http://x"`, "my_token": `"canary"`, "a_b": `12345678901234567`, "a_b-0123456789abcdef": `{"x":[1.0]}`, "_": `1`, "broken": `canary`},
		map[string]string{"pulumi.com/secrets": `["my_token"]`, "pulumi.com/output-names": `{"my_token":"my token","a_b-0123456789abcdef":"a/b","_":""}`},
	))
	g.Expect(err).NotTo(HaveOccurred())
	shown := map[string]string{}
	for name, value := range outputs {
		shown[name] = string(value.Raw)
	}
	g.Expect(shown).To(Equal(map[string]string{
		"url": `"http://x"`, "my token": `"[secret]"`, "a_b": `12345678901234567`, "a/b": `{"x":[1.0]}`, "": `1`, "broken": `"[secret]"`,
	}))
	_, err = shownOutputs(outputsOf(map[string]string{"a": "1"}, map[string]string{"pulumi.com/secrets": `canary`}))
	g.Expect(err).To(MatchError(And(ContainSubstring("pulumi.com/secrets"), Not(ContainSubstring("canary")))))
}

func TestOutputsInTheStatusAreBounded(t *testing.T) {
	large := `"` + strings.Repeat("x", 100<<10) + `"`
	g := NewWithT(t)
	outputs, err := shownOutputs(outputsOf(
		map[string]string{"a": large, "b": large, "c": large, "small": `1`, "secret": large}, map[string]string{"pulumi.com/secrets": `["secret"]`},
	))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(string(outputs["small"].Raw)).To(Equal(`1`))
	g.Expect(string(outputs["a"].Raw)).To(Equal(large))
	g.Expect(string(outputs["b"].Raw)).To(Equal(large))
	g.Expect(string(outputs["c"].Raw)).To(Equal(`"[102402 bytes, see key c of secret app-1-stack-outputs]"`))
	g.Expect(string(outputs["secret"].Raw)).To(Equal(`"[secret]"`))

	many := map[string]string{}
	for i := range 50_000 {
		many[fmt.Sprintf("output-with-a-long-name-%05d", i)] = `1`
	}
	outputs, err = shownOutputs(outputsOf(many, nil))
	g.Expect(err).NotTo(HaveOccurred())
	encoded, err := json.Marshal(outputs)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(len(encoded)).To(BeNumerically("<", 512<<10))
	g.Expect(len(outputs)).To(BeNumerically(">", 5000))
	again, err := shownOutputs(outputsOf(many, nil))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(again).To(Equal(outputs), "the same each time: otherwise the status would change for ever")
}
