package operation

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"github.com/pulumi/pulumi/sdk/v3/go/common/resource/plugin"

	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
)

func TestWhatIsNotKnownHasANameAndNoValue(t *testing.T) {
	g := NewWithT(t)
	g.Expect(unknownValues).To(ConsistOf(plugin.UnknownBoolValue, plugin.UnknownNumberValue, plugin.UnknownStringValue,
		plugin.UnknownArrayValue, plugin.UnknownAssetValue, plugin.UnknownArchiveValue, plugin.UnknownObjectValue))
	outputs, secret := reportedOutputs(map[string]json.RawMessage{
		"known": []byte(`{"a": [12345678901234567890, 1.0]}`), "unknown": []byte(`"` + plugin.UnknownStringValue + `"`),
		"partly": []byte(`{"a": ["` + plugin.UnknownNumberValue + `"]}`), "quoted": []byte(`"see \"` + plugin.UnknownStringValue + `\""`),
	})
	g.Expect(secret).To(BeFalse())
	g.Expect(outputs).To(HaveLen(4))
	for _, name := range []string{"unknown", "partly"} {
		g.Expect(outputs[name].GetUnknown()).To(BeTrue())
		g.Expect(outputs[name].GetOmitted()).To(BeTrue(), "a controller that does not know unknown outputs stores no value either")
		g.Expect(outputs[name].GetValue()).To(BeEmpty())
	}
	g.Expect(outputs).To(HaveKey("quoted"))
	g.Expect(string(outputs["known"].GetValue())).To(Equal(`{"a":[12345678901234567890,1.0]}`))
}

func TestNestedSecretMakesTheOutputSecret(t *testing.T) {
	g := NewWithT(t)
	outputs, incomplete := reportedOutputs(map[string]json.RawMessage{
		"plain": []byte(`1`), "nested": []byte(`[{"x": {"` + secretSignatureKey + `": "` + secretSignatureValue + `", "ciphertext": "[secret]"}}]`),
	})
	g.Expect(incomplete).To(BeTrue())
	g.Expect(outputs["nested"].GetSecret()).To(BeTrue())
	g.Expect(outputs["plain"].GetSecret()).To(BeFalse())
}

func TestTextsInPlaceOfValuesAreRecognised(t *testing.T) {
	g := NewWithT(t)
	long := `"` + strings.Repeat("x", maxShown) + `[secret]"`
	outputs, incomplete := reportedOutputs(map[string]json.RawMessage{
		"plain": []byte(`"x"`), "part": []byte(`{"a": "arn:[secret]:role"}`), "long": []byte(long), "asset": []byte(`{"text":"\u003ccontents elided\u003e"}`),
	})
	g.Expect(incomplete).To(BeTrue())
	g.Expect(outputs["plain"].GetShown()).To(BeNil())
	g.Expect(string(outputs["part"].GetShown())).To(Equal(`{"a":"arn:[secret]:role"}`))
	g.Expect(string(outputs["long"].GetShown())).To(Equal(`"[secret]"`))
	g.Expect(outputs["asset"].GetShown()).NotTo(BeNil())
}

func TestOutputsFitIntoAMessage(t *testing.T) {
	g := NewWithT(t)
	outputs := map[string]*agentpb.Output{"small": {Value: []byte("1")}, "huge": {Value: make([]byte, maxOutput+1), Secret: true}}
	for i := range 10 {
		outputs[fmt.Sprint("large", i)] = &agentpb.Output{Value: make([]byte, maxOutput)}
	}
	boundOutputs(outputs)
	g.Expect(outputs).To(HaveLen(12))
	g.Expect(outputs["small"].GetOmitted()).To(BeFalse())
	g.Expect(outputs["huge"]).To(And(HaveField("Omitted", true), HaveField("Secret", true), HaveField("Value", BeEmpty())))
	size := 0
	for name, output := range outputs {
		g.Expect(output.GetOmitted()).To(Equal(len(output.GetValue()) == 0), name)
		size += len(output.GetValue())
	}
	g.Expect(size).To(BeNumerically("<=", agentpb.MaxOutputsSize))
	g.Expect(outputs["large0"].GetOmitted()).To(BeFalse(), "the first of those that are as large")

	many := map[string]*agentpb.Output{}
	for i := range 30_000 {
		many[fmt.Sprint(strings.Repeat("n", 250), i)] = &agentpb.Output{Value: []byte("1")}
	}
	boundOutputs(many)
	g.Expect(many).To(HaveLen(agentpb.MaxOutputs))
}
