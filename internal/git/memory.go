package git

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sync/semaphore"

	"github.com/stack-controller/stack-controller/internal/artifact/archive"
	"github.com/stack-controller/stack-controller/internal/fairqueue"
)

// What all checkouts of the process may have in memory together. The container of the controller may have as little as 512 MiB:
//
//	128 MiB  heldMemory: the objects of packs and the names of files, until their checkouts are closed; more if the limits of artifacts
//	         allow a commit that takes more
//	100 MiB  workingMemory: the content of objects while deltas are applied, trees are read, and files are archived
//	 10 MiB  16 requests for refs and 4 downloads at the same time, which have no more than buffers and up to maxTips hashes each
//	 -------
//	238 MiB  and the rest for everything else
//
// With Go's garbage, which GOMEMLIMIT bounds, that stays below the limit.
const (
	heldMemory = 128 << 20

	// objectMemory is what an object of a pack takes while the pack is indexed, entryMemory a file or directory with its name.
	objectMemory = 128
	entryMemory  = 96 + 2*namesPerEntry

	// namesPerEntry bounds the paths in a commit: so many bytes for each of the files and directories that a commit may have.
	namesPerEntry = 112

	workingMemory = 2*maxInMemory + baseCacheSize + workingBuffers

	// workingBuffers are for compression, decompression and copying.
	workingBuffers = 4 << 20

	// concurrentSearches is how many histories are downloaded at the same time to find what an abbreviated SHA stands for.
	concurrentSearches = 4

	// concurrentClaims is how many checkouts have memory, or are next to have some, at the same time.
	concurrentClaims = 4
)

// errBusy ends a checkout that waited too long for memory, and a search that waited too long for other searches.
var errBusy = errors.New("the controller was busy with other checkouts for too long")

// memory is the budget of the process. A claim is made at once, and for what needs no network: a server that is slow takes nothing
// from others. Who has working memory waits for nobody else's memory: it is claimed second. So nobody waits in a circle.
//
// A claim needs a turn first, of which a namespace has two at most; then claims are served in the order in which they came. They end with
// their checkout, which Options.CheckoutTimeout bounds. So a namespace waits for few checkouts of another one, however many it has.
type memory struct {
	turns         *fairqueue.Pool
	held, working *semaphore.Weighted
}

// newMemory makes room for one commit at least, as large as the limits allow.
func newMemory(limits archive.Limits) *memory {
	largest := weight(historyFactor*maxObjects(limits), limits.MaxEntries)
	return &memory{turns: fairqueue.NewPool(concurrentClaims), held: semaphore.NewWeighted(max(heldMemory, largest)), working: semaphore.NewWeighted(workingMemory)}
}

// weight is what a checkout of so many objects and entries holds, in bytes.
func weight(objects, entries int) int64 {
	return int64(objects)*objectMemory + int64(entries)*entryMemory
}

// claim is what one checkout has of the budget, with its submodules. It is for one goroutine.
type claim struct {
	memory    *memory
	namespace string
	bytes     int64
	// leave gives back the turn; nil without one.
	leave func()
}

// newClaim is on behalf of the namespace, and has nothing yet.
func (m *memory) newClaim(namespace string) *claim { return &claim{memory: m, namespace: namespace} }

// holdPacks waits for the memory of the objects of the files, which are bounded together as each of them is, and of so many entries.
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

// hold waits for the memory of so many objects and entries. The claim must have nothing. Errors are errBusy.
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

// shrink gives back what is more than is needed for the objects and entries.
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

// work waits for working memory, and returns what has to be called to release it. Errors are errBusy.
func (m *memory) work(ctx context.Context, bytes int64) (release func(), err error) {
	bytes = min(bytes, workingMemory)
	if m.working.Acquire(ctx, bytes) != nil {
		return func() {}, errBusy
	}
	return func() { m.working.Release(bytes) }, nil
}
