package automation

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"github.com/pulumi/pulumi/sdk/v3/go/common/resource/plugin"

	"github.com/stack-controller/stack-controller/internal/agent/proto"
)

func TestWhatIsNotKnownIsNoOutput(t *testing.T) {
	g := NewWithT(t)
	g.Expect(unknownValues).To(ConsistOf(plugin.UnknownBoolValue, plugin.UnknownNumberValue, plugin.UnknownStringValue,
		plugin.UnknownArrayValue, plugin.UnknownAssetValue, plugin.UnknownArchiveValue, plugin.UnknownObjectValue))
	outputs, secret := reportedOutputs(map[string]json.RawMessage{
		"known": []byte(`{"a": [12345678901234567890, 1.0]}`), "unknown": []byte(`"` + plugin.UnknownStringValue + `"`),
		"partly": []byte(`{"a": ["` + plugin.UnknownNumberValue + `"]}`), "quoted": []byte(`"see \"` + plugin.UnknownStringValue + `\""`),
	})
	g.Expect(secret).To(BeFalse())
	g.Expect(outputs).To(HaveLen(2))
	g.Expect(outputs).To(HaveKey("quoted"))
	g.Expect(string(outputs["known"].GetValue())).To(Equal(`{"a":[12345678901234567890,1.0]}`))
}

func TestNestedSecretMakesTheOutputSecret(t *testing.T) {
	g := NewWithT(t)
	outputs, secret := reportedOutputs(map[string]json.RawMessage{
		"plain": []byte(`1`), "nested": []byte(`[{"x": {"` + secretSignatureKey + `": "` + secretSignatureValue + `", "ciphertext": "[secret]"}}]`),
	})
	g.Expect(secret).To(BeTrue())
	g.Expect(outputs["nested"].GetSecret()).To(BeTrue())
	g.Expect(outputs["plain"].GetSecret()).To(BeFalse())
}

func TestOutputsFitIntoAMessage(t *testing.T) {
	g := NewWithT(t)
	outputs := map[string]*proto.Output{"small": {Value: []byte("1")}, "huge": {Value: make([]byte, maxOutput+1), Secret: true}}
	for i := range 10 {
		outputs[fmt.Sprint("large", i)] = &proto.Output{Value: make([]byte, maxOutput)}
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
	g.Expect(size).To(BeNumerically("<=", maxOutputs))
	g.Expect(outputs["large0"].GetOmitted()).To(BeFalse(), "the first of those that are as large")

	many := map[string]*proto.Output{}
	for i := range 30_000 {
		many[fmt.Sprint(strings.Repeat("n", 250), i)] = &proto.Output{Value: []byte("1")}
	}
	boundOutputs(many)
	g.Expect(len(many)).To(And(BeNumerically(">", 10_000), BeNumerically("<", 30_000)))
}

// FuzzConfigValue expects of every value and key that it is refused, or reads in the file as it was written.
func FuzzConfigValue(f *testing.F) {
	f.Add("a", `{"x": [1, 1.0, 1e400, null, "yes", {"secure": "x"}]}`, true, false)
	f.Add("a.b[2]", "12345678901234567890", false, true)
	f.Add(`demo:a["x.y"]`, "\u2028\x00", false, true)
	f.Add("aws:config:region", "", false, false)
	f.Fuzz(func(t *testing.T, key, value string, isJSON, path bool) {
		if isJSON && !json.Valid([]byte(value)) {
			return
		}
		merged, err := merge("config:\n  demo:a: {b: [1]}\n  aws:region: eu\n", configItem{key: key, path: path, value: value, json: isJSON})
		if err != nil {
			return
		}
		file, err := parseStackFile([]byte(merged))
		if err != nil {
			t.Fatalf("%q does not read: %s", merged, err)
		}
		parsed, err := parseConfigKey(key, path, "demo")
		if err != nil {
			t.Fatal(err)
		}
		values, err := file.config()
		if err != nil {
			t.Fatal(err)
		}
		found := valueOf(values, parsed.String())
		if found == nil {
			t.Fatalf("%q has no %q", merged, parsed.String())
		}
		if !isJSON && !path && found.Value != value {
			t.Fatalf("%q became %q", value, found.Value)
		}
	})
}

// FuzzStackFile expects that a file that is accepted is written as one that is accepted.
func FuzzStackFile(f *testing.F) {
	f.Add("config:\n  a: &x {b: 1.50}\n  c: *x\nenvironment: [base]\n")
	f.Add("encryptionsalt: v1:x\nconfig: {a: {secure: abc}}")
	f.Add("\xef\xbb\xbf{\"config\": null}")
	f.Fuzz(func(t *testing.T, content string) {
		file, err := parseStackFile([]byte(content))
		if err != nil {
			return
		}
		_, _ = file.crypto()
		_, _ = file.config()
		_ = file.addEnvironments([]string{"team/base"})
		written, err := file.encode()
		if err != nil {
			return
		}
		if _, err := parseStackFile(written); err != nil {
			t.Fatalf("%q became %q: %s", content, written, err)
		}
	})
}
