package operation

import (
	"encoding/json"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
	"github.com/stack-controller/stack-controller/internal/agent/cli"
	"github.com/stack-controller/stack-controller/internal/agent/redact"
	"github.com/stack-controller/stack-controller/internal/agent/state"
	"github.com/stack-controller/stack-controller/internal/plaintext"
	"github.com/stack-controller/stack-controller/internal/steps"
	"github.com/stack-controller/stack-controller/internal/urn"
)

// engineEvent is the part of an engine event that the agent reads. apitype.EngineEvent would also decode all inputs and outputs of each
// resource, which may be large and secret.
type engineEvent struct {
	Diagnostic  *diagnostic  `json:"diagnosticEvent"`
	ResourcePre *stepEvent   `json:"resourcePreEvent"`
	ResOutputs  *stepEvent   `json:"resOutputsEvent"`
	Policy      *policyEvent `json:"policyEvent"`
	Summary     *struct {
		ResourceChanges map[string]int64 `json:"resourceChanges"`
		Result          string           `json:"result"`
		IsPreview       bool             `json:"isPreview"`
	} `json:"summaryEvent"`
}

// isPreview reports whether the event is a step or the summary of a preview. Old versions of the CLI do not say so in the summary: then it
// is that of the steps before it.
func (e *engineEvent) isPreview(stepsBefore bool) bool {
	switch {
	case e.ResourcePre != nil:
		return e.ResourcePre.Planning
	case e.ResOutputs != nil:
		return e.ResOutputs.Planning
	}
	return e.Summary != nil && (e.Summary.IsPreview || stepsBefore)
}

// diagnostic is a message of the engine, a provider or the program.
type diagnostic struct {
	URN      string `json:"urn"`
	Message  string `json:"message"`
	Severity string `json:"severity"`
}

type stepEvent struct {
	// Planning is true for a step of a preview.
	Planning bool `json:"planning"`
	Metadata struct {
		Op   string `json:"op"`
		URN  string `json:"urn"`
		Type string `json:"type"`
		// Diffs are the names of the properties that differ, Keys the names of those that make a replacement necessary. DetailedDiff has the
		// paths of the parts that differ, if the provider reports them.
		Diffs        []string            `json:"diffs"`
		Keys         []string            `json:"keys"`
		DetailedDiff map[string]struct{} `json:"detailedDiff"`
		Old          *struct {
			Parent string `json:"parent"`
		} `json:"old"`
		New *struct {
			Parent  string                     `json:"parent"`
			Outputs map[string]json.RawMessage `json:"outputs"`
		} `json:"new"`
	} `json:"metadata"`
}

// parent returns the URN of the parent of the resource; empty when it has none.
func (e *stepEvent) parent() string {
	switch step := e.Metadata; {
	case step.New != nil:
		return step.New.Parent
	case step.Old != nil:
		return step.Old.Parent
	}
	return ""
}

const (
	// stackType and providerPrefix are types of resources that no user asked for.
	stackType      = "pulumi:pulumi:Stack"
	providerPrefix = "pulumi:providers:"
	// maxDiagnostics and maxDiagnosticSize bound the errors that are kept; the message has room for a few only.
	maxDiagnostics    = 10
	maxDiagnosticSize = 2 << 10
	// maxChanged, maxDiffs and maxChangedSize, in bytes, bound what is kept of the steps that changed something.
	maxChanged     = 5
	maxDiffs       = 5
	maxChangedSize = 300
	// maxPrinted bounds what is kept of what programs print, in bytes.
	maxPrinted = 2 << 10
	// maxKinds and maxKindSize, in bytes, bound the kinds of steps that are counted: the engine knows about twenty.
	maxKinds    = agentpb.MaxChangeKinds
	maxKindSize = agentpb.MaxChangeKind
	// printedSeverity is the severity of what a program, or the plugin that runs it, prints on its standard error.
	printedSeverity = "info#err"
)

// summary is the summary of the events of one CLI process. It is bounded, and has no secret that the redactor knows.
type summary struct {
	redactor *redact.Redactor
	// withPreview is true when the process makes a preview before it changes anything. The steps of the preview do not count.
	withPreview bool

	changes map[string]int64
	// uncounted are the steps that change something and that the engine does not count, by their kind, see hasNameOfDefault.
	uncounted map[string]int64
	// current describes the step that started last.
	current string
	// outputs are the raw outputs of the stack; nil if the engine reported none.
	outputs map[string]json.RawMessage
	// errors are the diagnostics that say why the operation failed, in order, without those that only say that it failed. warnings are the
	// diagnostics that did not make it fail.
	errors, warnings []string
	// awaiting are the resources that a provider did not wait for.
	awaiting []string
	// policies are the violations of policies that made the operation fail. Their texts are those of the policies: they decide nothing.
	policies []string
	// preview is true while the steps and their summary are those of a preview.
	preview bool
	// violations are the diagnostics about what is not in the plan. They contain values, which nobody may see.
	violations []string
	// placeFollows is true when the next line may say to which place in the program the last warning belongs.
	placeFollows bool
	// changed describes the first steps that changed a resource, and changedMore counts the others.
	changed     []string
	changedMore int
	// planned is what a preview of any kind would change.
	planned changeList
	// printed is the end of what the program printed on its standard error. Some language plugins say there, and only there, why
	// they failed. It is nil if nothing was printed.
	printed *cli.Tail
	// dynamic is true when there is a resource with a dynamic provider.
	dynamic bool
	// started is true once the engine was at work: from then on a failure is one of the program, not of the preparations.
	started bool
	// complete is true once the engine's own summary was received. Pulumi ignores that it cannot write its events, for example because the
	// disk is full, and succeeds nevertheless. But it writes none after the first one for which there was no room, and each successful run of
	// the engine, also one that has nothing to do, ends with a summary. So if that arrived, what came before did. Gaps in the numbers of the
	// events (sequence) mean nothing: there are kinds of events that are never written.
	complete bool
}

// add takes one event into account and reports whether there is progress to show. An event that cannot be decoded is skipped.
func (s *summary) add(encoded []byte) bool {
	var event engineEvent
	if json.Unmarshal(encoded, &event) != nil {
		return false
	}
	isStep := event.ResourcePre != nil || event.ResOutputs != nil || event.Summary != nil
	if isStep {
		s.preview = event.isPreview(s.preview)
	}
	switch {
	case s.withPreview && isStep && s.preview:
		s.started = true
		return false
	case event.ResourcePre != nil:
		s.started = true
		step := event.ResourcePre.Metadata
		s.dynamic = s.dynamic || !strings.HasPrefix(step.Op, "delete") && state.IsDynamic(step.Type)
		if step.Type == stackType || strings.HasPrefix(step.Type, providerPrefix) || step.Op == steps.Same {
			return false
		}
		s.current = step.Op + " " + step.Type + " " + urn.Name(step.URN)
		return true
	case event.ResOutputs != nil:
		s.addDone(event.ResOutputs)
		return true
	case event.Summary != nil:
		s.complete = true
		// The engine's own count replaces the steps that were counted here.
		s.changes = nil
		for _, counts := range []map[string]int64{event.Summary.ResourceChanges, s.uncounted} {
			for _, kind := range slices.Sorted(maps.Keys(counts)) {
				s.count(kind, counts[kind])
			}
		}
		return true
	case event.Diagnostic != nil:
		s.addDiagnostic(event.Diagnostic)
	case event.Policy != nil:
		s.addPolicy(event.Policy)
	}
	return false
}

func (s *summary) addDiagnostic(diagnostic *diagnostic) {
	switch diagnostic.Severity {
	case "error":
		s.addError(diagnostic.URN, diagnostic.Message)
	case "warning":
		switch {
		case diagnostic.URN != "" && strings.TrimSpace(plaintext.Strip(diagnostic.Message)) == isAwaited:
			if len(s.awaiting) < maxDiagnostics {
				s.awaiting = append(s.awaiting, s.cut(urn.Type(diagnostic.URN)+" "+urn.Name(diagnostic.URN), maxDiagnosticSize))
			}
		case diagnostic.URN != "":
			s.addWarning(s.describe(diagnostic.URN, diagnostic.Message))
		case retried.MatchString(diagnostic.Message):
			// Newer engines report a failed download themselves. It may be what the error does not say, see withLastAttempt.
			s.addPrinted(diagnostic.Message)
		}
		// Any other warning that is not about a resource is one of the CLI about itself, such as where it found a plugin.
	case printedSeverity:
		for line := range strings.Lines(s.addPrinted(diagnostic.Message)) {
			s.addPrintedWarning(strings.TrimSpace(line))
		}
	}
}

// isAwaited is what the engine says about a resource that its provider did not wait for.
const isAwaited = "resource is awaiting"

// addPrinted adds to the end of what was printed, and returns the text without secrets.
func (s *summary) addPrinted(message string) string {
	if s.printed == nil {
		s.printed = cli.NewTail(maxPrinted)
	}
	// The text is redacted before it is cut: if a secret is cut in two, neither part is recognised. Writing to a tail does not fail.
	text := s.redactor.String(plaintext.Strip(message))
	_, _ = s.printed.Write([]byte(text))
	return text
}

// printedProblem matches a line in which a language plugin complains without making the operation fail. Pulumi YAML prints such a line
// about a field that it does not know, and the next line says where the field is.
var printedProblem = regexp.MustCompile(`^(?:Warning|Error): (.+)$`)

func (s *summary) addPrintedWarning(line string) {
	if problem := printedProblem.FindStringSubmatch(line); problem != nil {
		s.addWarning(s.cut(problem[1], agentpb.MaxWarning))
		s.placeFollows = true
		return
	}
	if place, isPlace := strings.CutPrefix(line, "on "); isPlace && s.placeFollows && len(s.warnings) > 0 {
		last := &s.warnings[len(s.warnings)-1]
		*last = s.cut(*last+" on "+strings.TrimSuffix(place, ":"), agentpb.MaxWarning)
	}
	s.placeFollows = s.placeFollows && line == ""
}

func (s *summary) addWarning(text string) {
	if text != "" && len(s.warnings) < agentpb.MaxWarnings && !slices.Contains(s.warnings, text) {
		s.warnings = append(s.warnings, text)
	}
}

func (s *summary) addDone(event *stepEvent) {
	step := event.Metadata
	s.count(step.Op, 1)
	if hasNameOfDefault(step.URN) && !isNoChange(step.Op, step.Type, step.URN, event.parent()) && len(step.Op) <= maxKindSize && len(s.uncounted) < maxKinds {
		if s.uncounted == nil {
			s.uncounted = map[string]int64{}
		}
		s.uncounted[step.Op]++
	}
	s.addChanged(event)
	s.planned.add(event, s.cut)
	if step.Type == stackType && step.New != nil && step.Op != "delete" {
		s.outputs = step.New.Outputs
	}
}

// count adds to the number of steps of a kind.
func (s *summary) count(kind string, steps int64) {
	_, known := s.changes[kind]
	if len(kind) > maxKindSize || steps < 0 || !known && len(s.changes) >= maxKinds {
		return
	}
	if s.changes == nil {
		s.changes = map[string]int64{}
	}
	s.changes[kind] += steps
}

// cut redacts the text, and then shortens it to size bytes: if a secret is cut in two, neither part is recognised later.
func (s *summary) cut(text string, size int) string {
	return plaintext.Cut(s.redactor.String(text), size)
}

func (s *summary) addChanged(event *stepEvent) {
	step := event.Metadata
	switch {
	case !steps.Of(step.Op).Changes || step.Type == stackType:
	case len(s.changed) >= maxChanged:
		s.changedMore++
	default:
		text := step.Op + " " + urn.Type(step.URN) + " " + urn.Name(step.URN)
		if len(step.Diffs) > 0 {
			text += " (" + strings.Join(step.Diffs[:min(len(step.Diffs), maxDiffs)], ", ") + ")"
		}
		s.changed = append(s.changed, s.cut(text, maxChangedSize))
	}
}

func (s *summary) addError(subject, message string) {
	if s.withPreview && violation.MatchString(message) {
		if len(s.violations) < maxDiagnostics {
			s.violations = append(s.violations, subject+" "+strings.TrimSpace(plaintext.Strip(message)))
		}
		return
	}
	text := s.describe(subject, message)
	if text != "" && text != "update failed" && text != "preview failed" && len(s.errors) < maxDiagnostics {
		s.errors = append(s.errors, text)
	}
}

// describe returns the message, with the resource that it is about if there is one.
func (s *summary) describe(subject, message string) string {
	message = strings.TrimSpace(plaintext.Strip(message))
	if name := urn.Name(subject); name != "" && message != "" && !strings.Contains(subject, "::"+stackType+"::") {
		message = urn.Type(subject) + " " + name + ": " + message
	}
	return s.cut(message, maxDiagnosticSize)
}

// stepsDone returns how many steps changed something.
func (s *summary) stepsDone() (done int64) {
	for _, count := range steps.Counts(s.changes) {
		if count.Changes {
			done += count.Steps
		}
	}
	return done
}

// printedText is the end of what the program printed on its standard error, empty if that is nothing.
func (s *summary) printedText() string {
	if s.printed == nil {
		return ""
	}
	return strings.TrimSpace(s.printed.String())
}
