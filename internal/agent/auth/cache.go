package auth

import (
	"container/list"
	"crypto/sha256"
	"sync"
	"time"
)

const (
	// maxEntries is how many decisions are remembered; the one that was used least recently goes first.
	maxEntries = 1000
	// allowTime and denyTime are how long a decision counts at most. The first is how late a right that was taken away is
	// noticed, the second how late one that was given.
	allowTime, denyTime = 5 * time.Minute, 5 * time.Second
)

// key stands for a token: its SHA-256, so that the memory of the agent does not collect tokens.
type key [sha256.Size]byte

func keyOf(token string) key {
	return sha256.Sum256([]byte(token))
}

// decision is what was decided on a token.
type decision struct {
	// err is a gRPC status that refuses the call, nil for one that is allowed.
	err error
	// until is how long the decision counts.
	until time.Time
	// tokenEnd is when a token that was allowed ends; zero when that is not known.
	tokenEnd time.Time
}

// cache remembers the latest decisions, a bounded number of them. It is safe for concurrent use.
type cache struct {
	mu      sync.Mutex
	max     int
	entries map[key]*list.Element
	// order has the entries, the one that was used last first.
	order *list.List
}

type entry struct {
	key      key
	decision decision
}

func newCache(size int) *cache {
	return &cache{max: size, entries: map[key]*list.Element{}, order: list.New()}
}

// get returns what was decided on the token, however long ago.
func (c *cache) get(k key) (decision, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	element, ok := c.entries[k]
	if !ok {
		return decision{}, false
	}
	c.order.MoveToFront(element)
	return element.Value.(*entry).decision, true
}

// put remembers the decision. A refusal never pushes out a token that is allowed: refusals are what a flood consists of.
func (c *cache) put(k key, d decision) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if element, ok := c.entries[k]; ok {
		element.Value.(*entry).decision = d
		c.order.MoveToFront(element)
		return
	}
	if len(c.entries) >= c.max && !c.evict(d.err == nil) {
		return
	}
	c.entries[k] = c.order.PushFront(&entry{key: k, decision: d})
}

// evict makes room: the refusal that was used least recently goes, or, for a token that is allowed, any other.
func (c *cache) evict(any bool) bool {
	victim := c.order.Back()
	for element := victim; element != nil; element = element.Prev() {
		if d := element.Value.(*entry).decision; d.err != nil || time.Now().After(later(d.until, d.tokenEnd)) {
			victim, any = element, true
			break
		}
	}
	if any {
		delete(c.entries, victim.Value.(*entry).key)
		c.order.Remove(victim)
	}
	return any
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
