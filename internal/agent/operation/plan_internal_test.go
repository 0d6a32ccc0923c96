package operation

import (
	"bytes"
	"compress/gzip"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
	"github.com/stack-controller/stack-controller/internal/agent/redact"
	"github.com/stack-controller/stack-controller/tests/framework/suite"
)

func TestPlanThatIsTooLargeIsNotKept(t *testing.T) {
	suite.Long(t, "further plans")
	g := NewWithT(t)
	from, to, back := filepath.Join(t.TempDir(), "from"), filepath.Join(t.TempDir(), "to"), filepath.Join(t.TempDir(), "back")
	write := func(content []byte) { g.Expect(os.WriteFile(from, content, 0o600)).To(Succeed()) }
	// Random bytes do not get smaller when they are compressed.
	random := make([]byte, agentpb.MaxPlanSize)
	_, _ = rand.Read(random)
	for name, content := range map[string][]byte{"compressed": random, "as it is": make([]byte, agentpb.MaxPlanFile+1)} {
		write(content)
		_, err := compressPlan(from, to)
		g.Expect(err).To(MatchError(And(ContainSubstring("64 MiB, and compressed 7200 KiB"), ContainSubstring("enforce: Inputs"))), name)
		_, reason := outcome(t.Context(), err)
		g.Expect(reason).To(Equal(agentpb.FailureReason_FAILURE_REASON_PLAN_TOO_LARGE), name)
	}
	for _, content := range [][]byte{random[:agentpb.MaxPlanSize-10_000], make([]byte, agentpb.MaxPlanFile), {}} {
		write(content)
		size, err := compressPlan(from, to)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(size).To(BeEquivalentTo(len(content)))
		compressed, err := os.ReadFile(to)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(expandPlan(to, back, fmt.Sprintf("sha256:%x", sha256.Sum256(compressed)))).To(Succeed())
		restored, err := os.ReadFile(back)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(string(restored) == string(content)).To(BeTrue())
	}
}

// The first plan has 3000 steps with long values, the second a few steps with values of all kinds.
func TestTextOfAPlanIsBoundedAndHasNoSecrets(t *testing.T) {
	suite.Long(t, "further plans")
	g := NewWithT(t)
	record := newPlanRecord([]byte("key"), "inputs", redact.New("canary-value"))
	step := func(op, name, inputs string) []byte {
		return fmt.Appendf(nil, `{"resOutputsEvent":{"metadata":{"op":%q,"urn":"urn:pulumi:dev::p::a:b:C::%s","type":"a:b:C","diffs":["x"],"keys":["x"],`+
			`"old":{"inputs":{"x":"before"}},"new":{"inputs":%s}}}}`, op, name, inputs)
	}
	random := make([]byte, 600)
	for i := range 3000 {
		_, _ = rand.Read(random)
		record.add(step("create", fmt.Sprintf("n%d", i), fmt.Sprintf(`{"x":"%x","y":[1,{"%s":"%s","ciphertext":"canary-cipher"}],"z":"04da6b54-80e4-46f7-96ec-b56ff0331ba9"}`,
			random, secretSignatureKey, secretSignatureValue)))
	}
	record.add([]byte(`{"resOutputsEvent":{"metadata":{"op":"same","urn":"urn:pulumi:dev::p::a:b:C::s","type":"a:b:C"}}}`))
	record.add([]byte(`{"resOutputsEvent": "broken`))
	text, err := record.text(map[string]int64{"create": 3000})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(len(text)).To(And(BeNumerically(">", agentpb.MaxPlanText/2), BeNumerically("<=", agentpb.MaxPlanText)))
	g.Expect(record.unknowns).To(BeEquivalentTo(3000))
	g.Expect(record.omitted).To(BeNumerically(">", 0))

	few := newPlanRecord([]byte("key"), "inputs", redact.New("canary-value"))
	for _, event := range [][]byte{
		step("replace", "one", `{"x":"canary-value"}`),
		step("update", "two", `{"x":{"`+secretSignatureKey+`":"`+secretSignatureValue+`","ciphertext":"canary-cipher"}}`),
		step("create", "three", `{"x":["\u001b[31mred",null,9007199254740993],"z":"04da6b54-80e4-46f7-96ec-b56ff0331ba9"}`),
		step("create", "five", `{"__provider":"code","__internal":{},"__defaults":[]}`),
		step("delete", "four", `{}`),
	} {
		few.add(event)
	}
	text, err = few.text(nil)
	g.Expect(err).NotTo(HaveOccurred())
	shown := unzipped(g, text)
	g.Expect(shown).To(And(
		ContainSubstring("+- replace a:b:C one"), ContainSubstring(`~ x: "before" => "[secret]" (needs the replacement)`),
		ContainSubstring(`~ x: "before" => [secret]`), ContainSubstring("+ z: (known after apply)"), ContainSubstring("9007199254740993"),
		ContainSubstring(`+ __provider: "code"`), Not(ContainSubstring("__internal")), Not(ContainSubstring("__defaults")),
		ContainSubstring("- delete a:b:C four"), Not(ContainSubstring("canary")), Not(ContainSubstring("\x1b"))))
	// The order of the steps does not count, their values do.
	other := newPlanRecord([]byte("key"), "inputs", redact.New())
	other.steps = append(append(other.steps, few.steps[2:]...), few.steps[:2]...)
	g.Expect(other.changesDigest()).To(Equal(few.changesDigest()))
	other.add(step("update", "five", `{"x":1}`))
	g.Expect(other.changesDigest()).NotTo(Equal(few.changesDigest()))
}

func TestTextOfAPlanSaysWhichInputsPulumiDoesNotHoldToIt(t *testing.T) {
	for since, want := range map[bool][]string{
		false: {`+ __provider: "a"`, `+ name: "x"`, `~ __provider: (none) => "b"`},
		true:  {`+ __provider: "a" (the plan does not bind this)`, `+ name: "x"`, `~ __provider: (none) => "b" (the plan does not bind this)`},
	} {
		g := NewWithT(t)
		record := newPlanRecord([]byte("key"), "inputs", redact.New())
		record.internalsUnbound = since
		for _, step := range []string{
			`{"op":"create","urn":"urn:pulumi:dev::p::a:b:C::c","type":"a:b:C","new":{"inputs":{"__provider":"a","name":"x"}}}`,
			`{"op":"update","urn":"urn:pulumi:dev::p::a:b:C::u","type":"a:b:C","diffs":["__provider"],"new":{"inputs":{"__provider":"b"}}}`,
		} {
			record.add([]byte(`{"resOutputsEvent":{"metadata":` + step + `}}`))
		}
		text, err := record.text(nil)
		g.Expect(err).NotTo(HaveOccurred())
		for _, line := range want {
			g.Expect(unzipped(g, text)).To(ContainSubstring("    " + line + "\n"))
		}
	}
}

// Equal values take hardly any room after they are compressed.
func TestTextOfAPlanIsBoundedAlsoBeforeItIsCompressed(t *testing.T) {
	suite.WithoutRaceDetector(t)
	g := NewWithT(t)
	record := newPlanRecord([]byte("key"), "inputs", redact.New())
	inputs := []string{}
	for i := range maxShownProperties {
		inputs = append(inputs, fmt.Sprintf(`"p%d":%q`, i, strings.Repeat("a", maxShownValue)))
	}
	const resources = 700
	for i := range resources {
		record.add(fmt.Appendf(nil, `{"resOutputsEvent":{"metadata":{"op":"create","urn":"urn:pulumi:dev::p::a:b:C::n%d","type":"a:b:C","new":{"inputs":{%s}}}}}`,
			i, strings.Join(inputs, ",")))
	}
	text, err := record.text(map[string]int64{"create": resources})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(len(text)).To(BeNumerically("<", agentpb.MaxPlanText))
	shown := unzipped(g, text)
	g.Expect(len(shown)).To(BeNumerically("<", 64<<20))
	g.Expect(shown[len(shown)-200:]).To(And(ContainSubstring("more resources, which have no room here"), ContainSubstring("700 resources would change, create 700")))
}

func unzipped(g *WithT, content []byte) string {
	zip, err := gzip.NewReader(bytes.NewReader(content))
	g.Expect(err).NotTo(HaveOccurred())
	plain, err := io.ReadAll(zip)
	g.Expect(err).NotTo(HaveOccurred())
	return string(plain)
}
