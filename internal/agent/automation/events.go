package automation

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/stack-controller/stack-controller/internal/agent/redact"
)

// engineEvent is what we read of an event of the engine; apitype.EngineEvent has the whole of it.
type engineEvent struct {
	Diagnostic *struct {
		URN      string `json:"urn"`
		Message  string `json:"message"`
		Severity string `json:"severity"`
	} `json:"diagnosticEvent"`
	ResourcePre *stepEvent `json:"resourcePreEvent"`
	ResOutputs  *stepEvent `json:"resOutputsEvent"`
	ResFailed   *stepEvent `json:"resOpFailedEvent"`
	Policy      *struct {
		ResourceURN      string `json:"resourceUrn"`
		Message          string `json:"message"`
		PolicyName       string `json:"policyName"`
		EnforcementLevel string `json:"enforcementLevel"`
	} `json:"policyEvent"`
	Summary *struct {
		ResourceChanges map[string]int64 `json:"resourceChanges"`
		Result          string           `json:"result"`
	} `json:"summaryEvent"`
}

// unchanging are the operations that the engine does not count as changes.
var unchanging = []string{"same", "read", "read-discard", "read-replacement", "discard", "discard-replaced", "refresh"}

type stepEvent struct {
	Metadata struct {
		Op   string `json:"op"`
		URN  string `json:"urn"`
		Type string `json:"type"`
		// Diffs are the names of the properties that differ.
		Diffs []string `json:"diffs"`
		New   *struct {
			Outputs map[string]json.RawMessage `json:"outputs"`
		} `json:"new"`
	} `json:"metadata"`
}

const (
	// stackType and providerPrefix are resources that nobody asked for.
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
	// maxKinds and maxKindSize, in bytes, bound what is counted by its kind: the engine knows about twenty.
	maxKinds    = 32
	maxKindSize = 64
	// printedSeverity is that of what a program, or the plugin that runs it, printed on its standard error.
	printedSeverity = "info#err"
)

// summary is what the events of one CLI process amount to.
type summary struct {
	mu sync.Mutex
	// redactor knows the secret values; nil when there are none.
	redactor *redact.Redactor

	changes map[string]int64
	// current describes the step that started last.
	current string
	// outputs are the raw outputs of the stack; nil when the engine reported none.
	outputs map[string]json.RawMessage
	// errors are the diagnostics that say why the operation failed, in order, and without those that only say that it did.
	errors []string
	// changed describes the first steps that changed a resource, and changedMore counts the others.
	changed     []string
	changedMore int
	// printed is the end of what the program printed on its standard error. Some language plugins say there, and only there, why
	// they failed. It is nil when nothing was printed.
	printed *tail
	// started says that the engine was at work: the failure is one of the program, not of the preparations.
	started bool
}

// add takes one event into account and tells whether there is progress to report.
func (s *summary) add(event engineEvent) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case event.ResourcePre != nil:
		s.started = true
		step := event.ResourcePre.Metadata
		if step.Type == stackType || strings.HasPrefix(step.Type, providerPrefix) || step.Op == "same" {
			return false
		}
		s.current = step.Op + " " + step.Type + " " + resourceName(step.URN)
		return true
	case event.ResOutputs != nil:
		s.addDone(event.ResOutputs)
		return true
	case event.Summary != nil:
		// The engine's own count is the one that counts.
		s.changes = nil
		for _, kind := range slices.Sorted(maps.Keys(event.Summary.ResourceChanges)) {
			s.count(kind, event.Summary.ResourceChanges[kind])
		}
		return true
	case event.Diagnostic != nil && event.Diagnostic.Severity == "error":
		s.addError(event.Diagnostic.URN, event.Diagnostic.Message)
	case event.Diagnostic != nil && event.Diagnostic.Severity == printedSeverity:
		s.addPrinted(event.Diagnostic.Message)
	case event.Policy != nil && event.Policy.EnforcementLevel == "mandatory":
		s.addError(event.Policy.ResourceURN, "policy "+event.Policy.PolicyName+": "+event.Policy.Message)
	}
	return false
}

func (s *summary) addDone(event *stepEvent) {
	step := event.Metadata
	s.count(step.Op, 1)
	s.addChanged(event)
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

// cut returns the text, without secrets and shortened to a size: of a secret that is cut in two, no part would be recognised later.
func (s *summary) cut(text string, size int) string {
	if s.redactor != nil {
		text = s.redactor.String(text)
	}
	return bounded(text, size)
}

func (s *summary) addChanged(event *stepEvent) {
	step := event.Metadata
	switch {
	case slices.Contains(unchanging, step.Op) || step.Type == stackType:
	case len(s.changed) >= maxChanged:
		s.changedMore++
	default:
		text := step.Op + " " + resourceType(step.URN) + " " + resourceName(step.URN)
		if len(step.Diffs) > 0 {
			text += " (" + strings.Join(step.Diffs[:min(len(step.Diffs), maxDiffs)], ", ") + ")"
		}
		s.changed = append(s.changed, s.cut(text, maxChangedSize))
	}
}

func (s *summary) addError(urn, message string) {
	message = strings.TrimSpace(stripEscapes(message))
	if message == "" || message == "update failed" || message == "preview failed" || len(s.errors) >= maxDiagnostics {
		return
	}
	if name := resourceName(urn); name != "" && !strings.Contains(urn, "::"+stackType+"::") {
		message = resourceType(urn) + " " + name + ": " + message
	}
	s.errors = append(s.errors, s.cut(message, maxDiagnosticSize))
}

func (s *summary) addPrinted(message string) {
	if s.printed == nil {
		s.printed = newTail(maxPrinted)
	}
	// Writing to a tail does not fail.
	_, _ = s.printed.Write([]byte(message))
}

// printedText is the end of what the program printed on its standard error, empty when that is nothing.
func (s *summary) printedText() string {
	if s.printed == nil {
		return ""
	}
	return strings.TrimSpace(s.printed.String())
}

// snapshot returns the counts and the step that runs.
func (s *summary) snapshot() (changes map[string]int64, current string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.changes), s.current
}

// resourceName is the last part of a URN: urn:pulumi:stack::project::parent$type::name.
func resourceName(urn string) string {
	parts := strings.SplitN(urn, "::", 4)
	return parts[len(parts)-1]
}

// resourceType is the type of a URN, without those of its parents.
func resourceType(urn string) string {
	parts := strings.SplitN(urn, "::", 4)
	if len(parts) < 4 {
		return "resource"
	}
	return parts[2][strings.LastIndex(parts[2], "$")+1:]
}
