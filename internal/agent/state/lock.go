package state

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
	"github.com/stack-controller/stack-controller/internal/plaintext"
)

// LockedText begins the message of the CLI that somebody holds a lock on a stack in a self-managed backend.
const LockedText = "the stack is currently locked by"

// lockLine matches one lock: "  file:///state/.pulumi/locks/…/uuid.json: created by USER@HOST (pid 42) at 2026-11-21T02:26:40Z".
// The name of a user may contain an @, the name of a host may not.
var lockLine = regexp.MustCompile(`created by ([^\n]*)@([^@\s]+) \(pid (\d{1,19})\) at (\S+)`)

// ParseLocks returns the holders of the locks that the text of the CLI names, in its order.
func ParseLocks(text string) []*agentpb.LockHolder {
	_, text, ok := strings.Cut(text, LockedText)
	if !ok {
		return nil
	}
	var holders []*agentpb.LockHolder
	for _, match := range lockLine.FindAllStringSubmatch(text, 32) {
		pid, err := strconv.ParseInt(match[3], 10, 64)
		if err != nil {
			continue
		}
		holder := &agentpb.LockHolder{User: plaintext.Cut(match[1], 128), Host: plaintext.Cut(match[2], 253), Pid: pid}
		if since, err := time.Parse(time.RFC3339, match[4]); err == nil {
			holder.Since = timestamppb.New(since)
		}
		holders = append(holders, holder)
	}
	return holders
}

// Host describes where the agent runs.
type Host struct {
	Name string
	// Program is the file name of the CLI.
	Program string
	// Exclusive says that nobody but this agent runs pulumi under this host name, as in a pod.
	Exclusive bool
	// Started is when this agent started.
	Started time.Time
}

// Abandoned reports whether all of the locks were left by processes that are gone: only then may the locks be removed, because `pulumi
// cancel` removes all of them.
//
// A lock names a host and a process ID, and both are used again: a pod that replaces a killed one has the same name, and its process IDs
// begin with the same small numbers.
//
// interrupted says when earlier operations of this Stack ran that were interrupted. A lock that was taken at another time is not that of a
// predecessor of this agent: a pod of another cluster or namespace has the same name, and may have taken the lock before this agent started.
func (s *Stack) Abandoned(host Host, interrupted []*agentpb.Period, holders []*agentpb.LockHolder) bool {
	leftOver := s.LeftOver()
	for _, holder := range holders {
		if holder.GetHost() != host.Name || s.holds(host, holder) {
			return false
		}
		since, known := holder.GetSince().AsTime(), holder.GetSince() != nil
		// If no other agent here uses the name of this host, a lock that was taken before this agent started, by an operation that was
		// interrupted, belongs to its predecessor.
		ofPredecessor := known && host.Exclusive && !since.After(host.Started) && slices.ContainsFunc(interrupted, func(period *agentpb.Period) bool {
			start, end := period.GetStart().AsTime(), period.GetEnd().AsTime()
			return !since.Before(start.Add(-clockResolution)) && !since.After(end.Add(clockResolution))
		})
		ours := slices.Contains(leftOver, int(holder.GetPid())) || known && s.tookAndEnded(holder.GetPid(), since)
		if !ours && !ofPredecessor {
			return false
		}
	}
	return len(holders) > 0
}

// holds reports whether the process that took the lock is alive: a process that this agent started, or a process that a user runs here. The
// latter is pulumi, and started before the lock was taken.
func (s *Stack) holds(host Host, holder *agentpb.LockHolder) bool {
	pid := int(holder.GetPid())
	if s.alive(pid) {
		return true
	}
	before := time.Now()
	if since := holder.GetSince(); since != nil {
		before = since.AsTime()
	}
	return slices.ContainsFunc([]string{"pulumi", host.Program}, func(program string) bool {
		return runsSince(pid, program, before.Add(clockResolution))
	})
}
