// Package bytecache keeps what was used last within a number of bytes. A number of entries is no bound when tenants decide how large they
// are. golang-lru bounds entries by their number; around container/list, a bound in bytes is as short as around that.
package bytecache

import "container/list"

// entryOverhead is what an entry takes beside its content, in bytes.
const entryOverhead = 256

// Cache keeps values by their keys. It has no lock of its own.
type Cache[K comparable, V any] struct {
	limit, size int64
	elements    map[K]*list.Element
	// recent has the entries, the most recently used first.
	recent *list.List
}

type entry[K comparable, V any] struct {
	key   K
	value V
	size  int64
}

// New returns a Cache for so many bytes.
func New[K comparable, V any](limit int64) *Cache[K, V] {
	return &Cache[K, V]{limit: limit, elements: map[K]*list.Element{}, recent: list.New()}
}

// Get returns the value of the key, and whether there is one.
func (c *Cache[K, V]) Get(key K) (value V, ok bool) {
	element, ok := c.elements[key]
	if !ok {
		return value, false
	}
	c.recent.MoveToFront(element)
	return element.Value.(entry[K, V]).value, true
}

// Add keeps the value, which takes about so many bytes, in place of an earlier one of the key. The least recently used ones make room for
// it; one that is larger than the cache is not kept.
func (c *Cache[K, V]) Add(key K, value V, size int64) {
	if element, ok := c.elements[key]; ok {
		c.remove(element)
	}
	c.elements[key] = c.recent.PushFront(entry[K, V]{key, value, size + entryOverhead})
	c.size += size + entryOverhead
	for c.size > c.limit {
		c.remove(c.recent.Back())
	}
}

func (c *Cache[K, V]) remove(element *list.Element) {
	removed := c.recent.Remove(element).(entry[K, V])
	delete(c.elements, removed.key)
	c.size -= removed.size
}

// Len is the number of values.
func (c *Cache[K, V]) Len() int { return c.recent.Len() }

// Size is about how much memory they take, in bytes.
func (c *Cache[K, V]) Size() int64 { return c.size }
