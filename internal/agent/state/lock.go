package state

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/stack-controller/stack-controller/internal/agent/proto"
	"github.com/stack-controller/stack-controller/internal/plaintext"
)

// LockedText is how the CLI begins to say that a self-managed backend holds a lock on the stack.
const LockedText = "the stack is currently locked by"

// lockLine is one lock: "  file:///state/.pulumi/locks/…/uuid.json: created by USER@HOST (pid 42) at 2026-11-21T02:26:40Z".
// A user's name may contain an @, a host's name may not.
var lockLine = regexp.MustCompile(`created by ([^\n]*)@([^@\s]+) \(pid (\d{1,19})\) at (\S+)`)

// ParseLocks returns who holds the locks that the text of the CLI names, in its order.
func ParseLocks(text string) []*proto.LockHolder {
	_, text, ok := strings.Cut(text, LockedText)
	if !ok {
		return nil
	}
	var holders []*proto.LockHolder
	for _, match := range lockLine.FindAllStringSubmatch(text, 32) {
		pid, err := strconv.ParseInt(match[3], 10, 64)
		if err != nil {
			continue
		}
		holder := &proto.LockHolder{User: plaintext.Cut(match[1], 128), Host: plaintext.Cut(match[2], 253), Pid: pid}
		if since, err := time.Parse(time.RFC3339, match[4]); err == nil {
			holder.Since = timestamppb.New(since)
		}
		holders = append(holders, holder)
	}
	return holders
}

// Host is where the agent runs.
type Host struct {
	Name string
	// Program is the name of the CLI's file.
	Program string
	// Exclusive says that nobody but this agent runs pulumi under this host name, as in a pod.
	Exclusive bool
	// Started is when this agent was.
	Started time.Time
}

// Abandoned reports whether all of the locks were left by processes that are gone: only then may they be removed, because `pulumi cancel`
// removes all of them.
//
// A lock names a host and a process ID. Both come again: a pod that replaces one that was killed has its name, and its process IDs begin
// with the same small numbers.
func (s *Stack) Abandoned(host Host, holders []*proto.LockHolder) bool {
	leftOver := s.LeftOver()
	for _, holder := range holders {
		if holder.GetHost() != host.Name || s.holds(host, holder) {
			return false
		}
		since, known := holder.GetSince().AsTime(), holder.GetSince() != nil
		// A lock under a host name that is ours alone is of our predecessor if it was taken before this agent was there. One that was taken
		// later is of neither a process of ours nor one before us: a pod of another cluster or namespace has the same name.
		ofPredecessor := known && host.Exclusive && !since.After(host.Started)
		ours := slices.Contains(leftOver, int(holder.GetPid())) || known && s.tookAndEnded(holder.GetPid(), since)
		if !ours && !ofPredecessor {
			return false
		}
	}
	return len(holders) > 0
}

// holds reports whether the process that took the lock lives: one that this agent started, or one that a user runs here, which then is
// pulumi and was started before the lock was taken.
func (s *Stack) holds(host Host, holder *proto.LockHolder) bool {
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
