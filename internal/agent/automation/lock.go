package automation

import (
	"context"
	"errors"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/stack-controller/stack-controller/internal/agent/proto"
)

// lockedText is how the CLI begins to say that a self-managed backend holds a lock on the stack.
const lockedText = "the stack is currently locked by"

// lockLine is one lock: "  file:///state/.pulumi/locks/…/uuid.json: created by USER@HOST (pid 42) at 2026-11-21T02:26:40Z".
// A user's name may contain an @, a host's name may not.
var lockLine = regexp.MustCompile(`created by ([^\n]*)@([^@\s]+) \(pid (\d{1,19})\) at (\S+)`)

// parseLocks returns who holds the locks that the text of the CLI names, in its order.
func parseLocks(text string) []*proto.LockHolder {
	_, text, ok := strings.Cut(text, lockedText)
	if !ok {
		return nil
	}
	var holders []*proto.LockHolder
	for _, match := range lockLine.FindAllStringSubmatch(text, 32) {
		pid, err := strconv.ParseInt(match[3], 10, 64)
		if err != nil {
			continue
		}
		holder := &proto.LockHolder{User: bounded(match[1], 128), Host: bounded(match[2], 253), Pid: pid}
		if since, err := time.Parse(time.RFC3339, match[4]); err == nil {
			holder.Since = timestamppb.New(since)
		}
		holders = append(holders, holder)
	}
	return holders
}

// lastLookTimeout bounds how long an agent that is about to end looks for a lock that it left.
const lastLookTimeout = 20 * time.Second

// leaveNoLock releases the lock that a process of ours left when it was killed by our wish to end: what tells that the lock is ours goes
// with the agent where its directory does.
func (o *operation) leaveNoLock(ctx context.Context) {
	if !errors.Is(context.Cause(ctx), ErrShutdown) || o.stack == nil || !o.selfManaged() || len(o.stack.leftOver()) == 0 {
		return
	}
	select {
	case <-o.runner.deadline.over:
		return // there is no time left
	default:
	}
	limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastLookTimeout)
	defer cancel()
	_, exists, err := o.exportState(limited)
	if err == nil && exists {
		err = o.freeForRepair(limited)
	}
	if err != nil {
		o.log.Info("a lock may be left", "error", o.readable(err.Error()))
	}
}

// clockResolution is by how much a process may seem to have started after it took a lock: the lock has whole seconds.
const clockResolution = 2 * time.Second

// abandoned tells whether all of the locks were left by processes that are gone: only then may they be removed, because
// `pulumi cancel` removes all of them.
//
// A lock names a host and a process ID. Both come again: a pod that replaces one that was killed has its name, and its process
// IDs begin with the same small numbers.
func (r *Runner) abandoned(s *stack, holders []*proto.LockHolder) bool {
	leftOver := s.leftOver()
	for _, holder := range holders {
		if holder.GetHost() != r.hostname || r.holds(s, holder) {
			return false
		}
		if !slices.Contains(leftOver, int(holder.GetPid())) && !s.couldNotRemove(holder) && !r.ofPredecessor(holder) {
			return false
		}
	}
	return len(holders) > 0
}

// ofPredecessor tells whether the lock was taken under a host name that is ours alone before this agent was there. One that was taken
// later is of neither a process of ours nor one before us: a pod of another cluster or namespace has the same name.
func (r *Runner) ofPredecessor(holder *proto.LockHolder) bool {
	return r.options.ExclusiveHost && holder.GetSince() != nil && !holder.GetSince().AsTime().After(r.started)
}

// holderOf returns who holds the lock that was in the way; nil when that is not why the operation failed.
func holderOf(err error) *proto.LockHolder {
	var f *failure
	if errors.As(err, &f) && len(f.holders) > 0 {
		return f.holders[0]
	}
	return nil
}

// holds tells whether the process that took the lock lives: one that this agent started, or one that a user runs here, which then is
// pulumi and was started before the lock was taken.
func (r *Runner) holds(s *stack, holder *proto.LockHolder) bool {
	pid := int(holder.GetPid())
	if s.alive(pid) {
		return true
	}
	before := time.Now()
	if since := holder.GetSince(); since != nil {
		before = since.AsTime()
	}
	return slices.ContainsFunc([]string{"pulumi", filepath.Base(r.pulumi)}, func(program string) bool {
		return runsSince(pid, program, before.Add(clockResolution))
	})
}
