package git

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sync/semaphore"

	"github.com/stack-controller/stack-controller/internal/fairqueue"
	"github.com/stack-controller/stack-controller/internal/source/artifact/archive"
)

// These constants bound what all checkouts of the process have in memory together. The container of the controller may have as little as
// 512 MiB:
//
//	128 MiB  heldMemory: the objects of packs and the names of files, until their checkouts are closed; more if the limits of artifacts
//	         allow a commit that takes more
//	100 MiB  workingMemory: the content of objects while deltas are applied, trees are read, and files are archived
//	 10 MiB  16 requests for refs and 4 downloads at the same time, which have no more than buffers and up to maxTips hashes each
//	 -------
//	238 MiB  and the rest for everything else
//
// With the garbage of Go's runtime, which GOMEMLIMIT bounds, the sum stays below that limit.
const (
	heldMemory = 128 << 20

	// objectMemory is how many bytes an object of a pack takes while the pack is indexed, entryMemory how many a file or directory takes
	// with its name.
	objectMemory = 128
	entryMemory  = 96 + 2*namesPerEntry

	// namesPerEntry bounds the total length of the paths in a commit, in bytes for each of the files and directories that a commit may
	// have.
	namesPerEntry = 112

	workingMemory = 2*maxInMemory + baseCacheSize + workingBuffers

	// workingBuffers are for compression, decompression and copying.
	workingBuffers = 4 << 20

	// concurrentSearches is how many histories are downloaded at the same time to find what an abbreviated SHA stands for.
	concurrentSearches = 4

	// concurrentClaims is how many checkouts at the same time have memory, or have a turn and wait for memory.
	concurrentClaims = 4
)

// errBusy ends a checkout that waited too long for memory, a search that waited too long for other searches, and a connection that waited
// too long for the private keys of others.
var errBusy = errors.New("the controller was busy with other checkouts for too long")

// memory is the budget of the process. A checkout claims all memory that it holds at once, and only for work that needs no network, so a
// slow server takes no memory from others. Working memory is claimed second, and a checkout that has working memory does not wait for any
// other memory. So there is no deadlock.
//
// A claim needs a turn first, of which a namespace has two at most. Claims with a turn are served in the order in which they came. They end
// with their checkout, which Options.CheckoutTimeout bounds. So a checkout waits for few checkouts of another namespace, however many that
// namespace has.
type memory struct {
	turns         *fairqueue.Pool
	held, working *semaphore.Weighted
}

// newMemory returns a budget with room for at least one commit, as large as the limits allow.
func newMemory(limits archive.Limits) *memory {
	largest := weight(historyFactor*maxObjects(limits), limits.MaxEntries)
	return &memory{turns: fairqueue.NewPool(concurrentClaims), held: semaphore.NewWeighted(max(heldMemory, largest)), working: semaphore.NewWeighted(workingMemory)}
}

// weight returns how many bytes a checkout with these numbers of objects and entries holds.
func weight(objects, entries int) int64 {
	return int64(objects)*objectMemory + int64(entries)*entryMemory
}

// claim is the part of the budget that one checkout has, submodules included. It is for one goroutine.
type claim struct {
	memory    *memory
	namespace string
	bytes     int64
	// leave gives back the turn; nil without one.
	leave func()
}

// newClaim returns a claim for the namespace that has no memory yet.
func (m *memory) newClaim(namespace string) *claim { return &claim{memory: m, namespace: namespace} }

// holdPacks waits for the memory for the entries and for the objects of the files. All files together may have no more objects than one of
// them may have.
func (c *claim) holdPacks(ctx context.Context, entries int, files ...packFile) error {
	total, most := int64(0), 0
	for _, file := range files {
		count, err := countObjects(file)
		if err != nil {
			return err
		}
		total, most = total+count, max(most, file.limits.objects)
	}
	if total > int64(most) {
		return fmt.Errorf("%w: more than %d objects", errPackTooLarge, most)
	}
	return c.hold(ctx, int(total), entries)
}

// hold waits for the memory for these numbers of objects and entries. The claim must have no memory yet. The only error is errBusy.
func (c *claim) hold(ctx context.Context, objects, entries int) error {
	leave, err := c.memory.turns.Acquire(ctx, c.namespace)
	if err != nil {
		return errBusy
	}
	bytes := weight(objects, entries)
	if c.memory.held.Acquire(ctx, bytes) != nil {
		leave()
		return errBusy
	}
	c.bytes, c.leave = bytes, leave
	return nil
}

// shrink gives back the memory that the objects and entries do not need.
func (c *claim) shrink(objects, entries int) {
	if needed := weight(objects, entries); needed < c.bytes {
		c.memory.held.Release(c.bytes - needed)
		c.bytes = needed
	}
}

func (c *claim) release() {
	if c.leave == nil {
		return
	}
	c.memory.held.Release(c.bytes)
	c.leave()
	c.bytes, c.leave = 0, nil
}

// work waits for working memory. The caller calls release to give it back. The only error is errBusy.
func (m *memory) work(ctx context.Context, bytes int64) (release func(), err error) {
	bytes = min(bytes, workingMemory)
	if m.working.Acquire(ctx, bytes) != nil {
		return func() {}, errBusy
	}
	return func() { m.working.Release(bytes) }, nil
}
