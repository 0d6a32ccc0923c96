package client

import (
	"encoding/json"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
	"github.com/stack-controller/stack-controller/internal/plaintext"
)

// maxErrorText bounds the text of an agent that an error quotes, in bytes.
const maxErrorText = 2 << 10

// cleanInfo cleans the texts of the answer, so that they can be shown.
func cleanInfo(info *agentpb.Info) {
	info.AgentVersion = cleanText(info.GetAgentVersion(), agentpb.MaxName)
	info.PulumiVersion = cleanText(info.GetPulumiVersion(), agentpb.MaxName)
	info.SourceDigest = cleanText(info.GetSourceDigest(), agentpb.MaxName)
	for _, operation := range info.GetOperations() {
		cleanOperation(operation)
		operation.Outputs, operation.Changes, operation.Plan = nil, nil, nil
	}
}

// cleanOperation cleans an operation from an agent, so that it can be written into a status as it is: text is short and readable, times are
// in the past, and values that this controller does not know are unspecified. An operation in an unknown state counts as not final.
func cleanOperation(operation *agentpb.Operation) {
	if !agentpb.ValidOperationID(operation.GetId()) {
		operation.Id = ""
	}
	operation.Kind = known(operation.GetKind(), agentpb.OperationKind_name)
	operation.State = known(operation.GetState(), agentpb.OperationState_name)
	operation.Failure = known(operation.GetFailure(), agentpb.FailureReason_name)
	operation.StartTime, operation.EndTime = cleanTime(operation.GetStartTime()), cleanTime(operation.GetEndTime())
	if operation.GetRunTime().CheckValid() != nil || operation.GetRunTime().AsDuration() < 0 {
		operation.RunTime = nil
	}
	operation.Message = cleanText(operation.GetMessage(), agentpb.MaxText)
	operation.Warnings = operation.GetWarnings()[:min(len(operation.GetWarnings()), agentpb.MaxWarnings)]
	for i, warning := range operation.Warnings {
		operation.Warnings[i] = cleanText(warning, agentpb.MaxWarning)
	}
	operation.Permalink = cleanLink(operation.GetPermalink())
	operation.Project = cleanProject(operation.GetProject())
	operation.ResourceChanges = cleanChanges(operation.GetResourceChanges())
	cleanPlanned(operation)
	operation.Plan = cleanPlan(operation.GetPlan())
	if holder := operation.GetLockHolder(); holder != nil {
		holder.User, holder.Host = cleanText(holder.GetUser(), agentpb.MaxName), cleanText(holder.GetHost(), agentpb.MaxName)
		holder.Since = cleanTime(holder.GetSince())
	}
	for _, output := range operation.GetOutputs() {
		if output.Value = output.GetValue(); output.GetOmitted() || !json.Valid(output.Value) {
			output.Value, output.Omitted = nil, true
		}
	}
}

// known returns the value, or zero, which is the unspecified value, if the value has no name.
func known[Enum ~int32](value Enum, names map[int32]string) Enum {
	if _, found := names[int32(value)]; !found {
		return 0
	}
	return value
}

// cleanText returns one readable line of at most size bytes, with an ellipsis where the text was cut. White space becomes spaces. Control
// characters, which terminals interpret, and characters that change the direction of text are removed.
func cleanText(text string, size int) string {
	return plaintext.Cut(strings.TrimSpace(strings.Map(func(r rune) rune {
		switch {
		case unicode.IsSpace(r):
			return ' '
		case unicode.IsControl(r), unicode.Is(unicode.Bidi_Control, r):
			return -1
		}
		return r
	}, text)), size)
}

// cleanLink returns the address if a browser can open it without harm, and an empty string otherwise.
func cleanLink(link string) string {
	parsed, err := url.Parse(link)
	if err != nil || len(link) > agentpb.MaxPermalink || parsed.Scheme != "https" && parsed.Scheme != "http" || parsed.Host == "" || parsed.User != nil {
		return ""
	}
	return parsed.String()
}

// cleanProject returns the project if its names are valid, and nil otherwise. It does not change a name, because the result would be the
// name of another project.
func cleanProject(project *agentpb.ProjectSource) *agentpb.ProjectSource {
	if project == nil || project.GetName() != cleanText(project.GetName(), agentpb.MaxName) ||
		project.GetRuntime() != cleanText(project.GetRuntime(), agentpb.MaxName) {
		return nil
	}
	return project
}

// cleanChanges returns the counts of at most agentpb.MaxChangeKinds kinds, the first ones in the order of their names.
func cleanChanges(changes map[string]int64) map[string]int64 {
	maps.DeleteFunc(changes, func(kind string, count int64) bool {
		return count < 0 || kind != cleanText(kind, agentpb.MaxChangeKind)
	})
	if kinds := slices.Sorted(maps.Keys(changes)); len(kinds) > agentpb.MaxChangeKinds {
		for _, kind := range kinds[agentpb.MaxChangeKinds:] {
			delete(changes, kind)
		}
	}
	return changes
}

// cleanPlanned bounds the changes that an operation would make.
func cleanPlanned(operation *agentpb.Operation) {
	changes, size := operation.GetChanges(), 0
	for i, change := range changes {
		change.Operation, change.Urn = cleanText(change.GetOperation(), agentpb.MaxChangeKind), cleanText(change.GetUrn(), agentpb.MaxURN)
		change.Paths, change.ReplacePaths = cleanPaths(change.GetPaths()), cleanPaths(change.GetReplacePaths())
		if !changeDigest.MatchString(change.GetDigest()) {
			change.Digest = ""
		}
		for _, text := range slices.Concat([]string{change.Operation, change.Urn}, change.Paths, change.ReplacePaths) {
			size += len(text)
		}
		if i >= agentpb.MaxChanges || size > agentpb.MaxChangesSize {
			operation.Changes = changes[:i]
			operation.OmittedChanges += int64(len(changes) - i)
			break
		}
	}
	operation.OmittedChanges = max(operation.GetOmittedChanges(), 0)
}

// planDigest matches the digests of a plan, and changeDigest that of one change.
var (
	planDigest   = regexp.MustCompile(`^[0-9a-f]{64}$`)
	changeDigest = regexp.MustCompile(`^[0-9a-f]{32}$`)
)

// cleanPlan returns the plan if its digests are valid, and nil otherwise.
func cleanPlan(plan *agentpb.Plan) *agentpb.Plan {
	if plan == nil {
		return nil
	}
	for _, digest := range []string{plan.GetDigests().GetInputs(), plan.GetDigests().GetChanges(), plan.GetDigests().GetState()} {
		if !planDigest.MatchString(digest) {
			return nil
		}
	}
	plan.PulumiVersion = cleanText(plan.GetPulumiVersion(), agentpb.MaxName)
	plan.Size, plan.Unknowns = max(plan.GetSize(), 0), max(plan.GetUnknowns(), 0)
	return plan
}

func cleanPaths(paths []string) []string {
	paths = paths[:min(len(paths), agentpb.MaxChangePaths)]
	for i, path := range paths {
		paths[i] = cleanText(path, agentpb.MaxChangePath)
	}
	return paths
}

// cleanTime returns the time if it is a valid time since 1970, and nil otherwise. A time in the future becomes now: clocks differ, and
// decisions are based on the time.
func cleanTime(stamp *timestamppb.Timestamp) *timestamppb.Timestamp {
	if stamp == nil || stamp.CheckValid() != nil || stamp.GetSeconds() < 0 {
		return nil
	}
	if now := time.Now(); stamp.AsTime().After(now) {
		return timestamppb.New(now)
	}
	return stamp
}
