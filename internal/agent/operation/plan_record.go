package operation

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/pulumi/pulumi/sdk/v3/go/common/resource"

	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
	"github.com/stack-controller/stack-controller/internal/agent/redact"
	"github.com/stack-controller/stack-controller/internal/plaintext"
	"github.com/stack-controller/stack-controller/internal/steps"
	"github.com/stack-controller/stack-controller/internal/urn"
)

const (
	// textReserve is how many bytes of agentpb.MaxPlanText stay free for what the compressor holds back and for the last lines.
	textReserve = 100 << 10
	// maxPlainText is how many bytes the text has before it is compressed, at most: many equal values take little room afterwards, and
	// flux-pulumi shows 64 MiB.
	maxPlainText = 60 << 20
	// maxShownValue is how many bytes of a value are in the text, and maxShownProperties how many properties of one resource.
	maxShownValue      = 1 << 10
	maxShownProperties = 100
	// unknownText and secretText stand in the text for values that are not known yet, and for values that are secret.
	unknownText = "(known after apply)"
	secretText  = redact.Mask
)

// resourceDone is in each event that counts as a change. Other events are not decoded a second time.
var resourceDone = []byte(`"resOutputsEvent"`)

// planRecord keeps a digest of the changes in a plan, and a text about them for people.
type planRecord struct {
	key      []byte
	redactor *redact.Redactor
	// inputs, values and state are digests, see agentpb.PlanDigests.
	inputs, values, state string
	// steps are the digests of the steps, and providers those of default providers that come or go, which the text leaves out. The engine
	// does not do the steps in the same order each time.
	steps     []string
	providers []string
	unknowns  int64
	// internalsUnbound is true if Pulumi's plan file does not bind inputs with names that begin with _.
	internalsUnbound bool

	buffer bytes.Buffer
	zip    *gzip.Writer
	// written is how many bytes of text went into zip.
	written int
	// omitted counts the changes that are not in the text.
	omitted int
}

func newPlanRecord(key []byte, values string, redactor *redact.Redactor) *planRecord {
	p := &planRecord{key: key, values: values, redactor: redactor}
	p.zip = gzip.NewWriter(&p.buffer)
	return p
}

// plannedStep is what a plan uses of a step of the engine.
type plannedStep struct {
	Op           string                     `json:"op"`
	URN          string                     `json:"urn"`
	Type         string                     `json:"type"`
	Diffs        []string                   `json:"diffs"`
	Keys         []string                   `json:"keys"`
	DetailedDiff map[string]plannedProperty `json:"detailedDiff"`
	Old          *plannedState              `json:"old"`
	New          *plannedState              `json:"new"`
}

type plannedProperty struct {
	Kind      string `json:"diffKind"`
	InputDiff bool   `json:"inputDiff"`
}

// plannedState keeps inputs and outputs as the engine writes them: with sorted keys, so that equal values are equal bytes.
type plannedState struct {
	ID       string          `json:"id"`
	Parent   string          `json:"parent"`
	Provider string          `json:"provider"`
	Protect  bool            `json:"protect"`
	Retain   bool            `json:"retainOnDelete"`
	Inputs   json.RawMessage `json:"inputs"`
	Outputs  json.RawMessage `json:"outputs"`
}

// provider returns the URN of the provider of the resource; empty for a resource without one. The reference also has the ID, which is not
// known before the provider exists.
func (s *plannedState) provider() string {
	if s == nil || !strings.Contains(s.Provider, "::") {
		return ""
	}
	return s.Provider[:strings.LastIndex(s.Provider, "::")]
}

// parent returns the URN of the parent of the resource; empty when it has none.
func (s *plannedStep) parent() string {
	switch {
	case s.New != nil:
		return s.New.Parent
	case s.Old != nil:
		return s.Old.Parent
	}
	return ""
}

// imported returns the ID of the resource that the step imports; empty when it imports none.
func (s *plannedStep) imported() string {
	if s.New == nil || !strings.HasPrefix(s.Op, "import") {
		return ""
	}
	return s.New.ID
}

// shownDigestSize is how many digits of the digest of a step the list of changes has.
const shownDigestSize = 32

// add takes an event of the engine into account. If the event is a step of the plan, add returns the beginning of its digest. p may be nil.
func (p *planRecord) add(event []byte) (digest string) {
	if p == nil || !bytes.Contains(event, resourceDone) {
		return ""
	}
	var decoded struct {
		ResOutputs *struct {
			Metadata plannedStep `json:"metadata"`
		} `json:"resOutputsEvent"`
	}
	if json.Unmarshal(event, &decoded) != nil || decoded.ResOutputs == nil {
		return ""
	}
	step := &decoded.ResOutputs.Metadata
	if isNoChange(step.Op, step.Type, step.URN, step.parent()) {
		if hasNameOfDefault(step.URN) && steps.Of(step.Op).Changes {
			p.providers = append(p.providers, p.digest(step))
		}
		return ""
	}
	if step.New != nil {
		for _, unknown := range unknownValues {
			p.unknowns += int64(bytes.Count(step.New.Inputs, []byte(`"`+unknown+`"`)))
		}
	}
	digest = p.digest(step)
	p.steps = append(p.steps, digest)
	if text := p.describe(step); p.buffer.Len() > agentpb.MaxPlanText-textReserve || p.written+len(text) > maxPlainText {
		p.omitted++
	} else {
		p.written += len(text)
		// Writing to a buffer does not fail.
		_, _ = p.zip.Write([]byte(text))
	}
	return digest[:shownDigestSize]
}

// digest returns the digest of what the step does. Outputs of a resource are not part of it: they are in the state, or not known before the
// step.
func (p *planRecord) digest(step *plannedStep) string {
	slices.Sort(step.Diffs)
	slices.Sort(step.Keys)
	described := []any{step.Op, step.URN, step.Diffs, step.Keys, step.DetailedDiff}
	for _, state := range []*plannedState{step.Old, step.New} {
		if state != nil {
			described = append(described, state.Protect, state.Retain, state.Inputs, state.provider())
		}
	}
	if step.Old != nil {
		described = append(described, step.Old.ID)
	}
	encoded, err := json.Marshal(described)
	if err != nil {
		// The step was decoded from JSON a moment ago.
		encoded = []byte(err.Error())
	}
	return digestOf(p.key, encoded)
}

// changesDigest returns the digest of the values and of all steps.
func (p *planRecord) changesDigest() string {
	slices.Sort(p.steps)
	slices.Sort(p.providers)
	// The text that is hashed has 64 characters and a line break for each change, however large the change is.
	sum := sha256.Sum256([]byte(strings.Join(slices.Concat(p.steps, p.providers), "\n")))
	return digestOf(p.key, fmt.Appendf(nil, "%s\n%x", p.values, sum))
}

// text returns the changes as text, compressed.
func (p *planRecord) text(counts map[string]int64) ([]byte, error) {
	last := &strings.Builder{}
	if p.omitted > 0 {
		fmt.Fprintf(last, "… and %d more resources, which have no room here\n", p.omitted)
	}
	if len(p.steps) == 0 {
		fmt.Fprintln(last, "no changes")
	} else {
		fmt.Fprintf(last, "%d resources would change", len(p.steps))
		for _, op := range slices.Sorted(maps.Keys(counts)) {
			fmt.Fprintf(last, ", %s %d", op, counts[op])
		}
		fmt.Fprintln(last)
	}
	if p.unknowns > 0 {
		fmt.Fprintf(last, "%d values are known only after apply\n", p.unknowns)
	}
	if _, err := p.zip.Write([]byte(last.String())); err != nil {
		return nil, err
	}
	if err := p.zip.Close(); err != nil {
		return nil, err
	}
	if p.buffer.Len() > agentpb.MaxPlanText {
		return nil, fmt.Errorf("the text has %d bytes", p.buffer.Len())
	}
	return p.buffer.Bytes(), nil
}

// engineInputs are inputs that the engine and bridged providers add for themselves. Others that begin with __ are shown: the code of a dynamic
// provider is one of them.
var engineInputs = []string{"__internal", "__defaults"}

// describe returns the lines about a step.
func (p *planRecord) describe(step *plannedStep) string {
	text := &strings.Builder{}
	fmt.Fprintf(text, "%s %s %s %s\n    %s\n", steps.Of(step.Op).Sign, p.shown(step.Op, maxShownValue), p.shown(urn.Type(step.URN), maxShownValue),
		p.shown(urn.Name(step.URN), maxShownValue), p.shown(step.URN, agentpb.MaxURN))
	if id := step.imported(); id != "" {
		fmt.Fprintf(text, "    id: %s\n", p.shown(id, maxShownValue))
	}
	if provider := p.provider(step); provider != "" {
		fmt.Fprintf(text, "    provider: %s\n", provider)
	}
	lines := p.properties(step)
	for _, line := range lines[:min(len(lines), maxShownProperties)] {
		fmt.Fprintf(text, "    %s\n", line)
	}
	if more := len(lines) - maxShownProperties; more > 0 {
		fmt.Fprintf(text, "    … and %d more properties\n", more)
	}
	return text.String() + "\n"
}

// provider returns the name of the provider that does the step, which says in which account the resource is; with the one that did the
// steps before, if that is another one.
func (p *planRecord) provider(step *plannedStep) string {
	before, now := step.Old.provider(), step.New.provider()
	switch {
	case before == "" || before == now:
		return p.shown(urn.Name(now), maxShownValue)
	case now == "":
		return p.shown(urn.Name(before), maxShownValue)
	}
	return p.shown(urn.Name(before), maxShownValue) + " => " + p.shown(urn.Name(now), maxShownValue)
}

// properties returns a line for each property that is new or differs.
func (p *planRecord) properties(step *plannedStep) (lines []string) {
	oldInputs, newInputs := valuesOf(step.Old, false), valuesOf(step.New, false)
	switch step.Op {
	case "delete":
		return nil
	case "create", "import":
		for _, name := range slices.Sorted(maps.Keys(newInputs)) {
			if !slices.Contains(engineInputs, name) {
				lines = append(lines, fmt.Sprintf("+ %s: %s", p.shown(name, agentpb.MaxChangePath), p.value(newInputs[name]))+p.unbound(name))
			}
		}
		return lines
	}
	paths := step.Diffs
	if len(step.DetailedDiff) > 0 {
		paths = slices.Sorted(maps.Keys(step.DetailedDiff))
	}
	for _, path := range paths {
		before := valueAt(oldInputs, path)
		if how, detailed := step.DetailedDiff[path]; detailed && !how.InputDiff {
			if reported := valueAt(valuesOf(step.Old, true), path); reported != nil {
				before = reported
			}
		}
		line := fmt.Sprintf("~ %s: %s => %s", p.shown(path, agentpb.MaxChangePath), p.value(before), p.value(valueAt(newInputs, path)))
		if slices.Contains(step.Keys, path) {
			line += " (needs the replacement)"
		}
		lines = append(lines, line+p.unbound(path))
	}
	return lines
}

// unbound says so if the approved value is not the one that the program must have when it runs again. Nothing else can compare it: Pulumi makes
// its changes right after the preview that it compares with the plan.
func (p *planRecord) unbound(path string) string {
	if p.internalsUnbound && strings.HasPrefix(path, "_") {
		return " (the plan does not bind this)"
	}
	return ""
}

// valuesOf decodes the inputs of a resource, or its outputs.
func valuesOf(state *plannedState, outputs bool) (values map[string]any) {
	if state == nil {
		return nil
	}
	encoded := state.Inputs
	if outputs {
		encoded = state.Outputs
	}
	decoder := json.NewDecoder(bytes.NewReader(encoded))
	decoder.UseNumber()
	if decoder.Decode(&values) != nil {
		return nil
	}
	return values
}

// valueAt returns the value at the path, nil when there is none.
func valueAt(values map[string]any, path string) any {
	parsed, err := resource.ParsePropertyPath(path)
	if err != nil {
		return values[path]
	}
	var current any = values
	for _, part := range parsed {
		switch inside := current.(type) {
		case map[string]any:
			if isSecretObject(inside) {
				return inside
			}
			name, _ := part.(string)
			current = inside[name]
		case []any:
			index, isIndex := part.(int)
			if !isIndex || index < 0 || index >= len(inside) {
				return nil
			}
			current = inside[index]
		default:
			// A part of an unknown value is as unknown as the whole.
			return current
		}
	}
	return current
}

func isSecretObject(value map[string]any) bool {
	return value[secretSignatureKey] == secretSignatureValue
}

// value returns the value as it is shown.
func (p *planRecord) value(value any) string {
	if value == nil {
		return "(none)"
	}
	encoded := &bytes.Buffer{}
	encoder := json.NewEncoder(encoded)
	encoder.SetEscapeHTML(false)
	if encoder.Encode(masked(value)) != nil {
		return secretText
	}
	text := strings.TrimSpace(encoded.String())
	for _, stand := range []string{unknownText, secretText} {
		text = strings.ReplaceAll(text, `"`+stand+`"`, stand)
	}
	return p.shown(text, maxShownValue)
}

// masked replaces secret values and unknown values.
func masked(value any) any {
	switch value := value.(type) {
	case map[string]any:
		if isSecretObject(value) {
			return secretText
		}
		for name, inside := range value {
			value[name] = masked(inside)
		}
	case []any:
		for i, inside := range value {
			value[i] = masked(inside)
		}
	case string:
		if slices.Contains(unknownValues, value) {
			return unknownText
		}
	}
	return value
}

// shown makes the text one line without secrets, of at most size bytes.
func (p *planRecord) shown(text string, size int) string {
	text = strings.Join(strings.Fields(plaintext.Strip(text)), " ")
	return plaintext.Cut(p.redactor.String(text), size)
}
