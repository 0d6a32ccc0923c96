// Package bytecache is a cache of the most recently used values with a limit in bytes. A limit on the number of entries is not enough when
// tenants decide how large the entries are. golang-lru limits only their number, and to add a limit in bytes around it would take as much
// code as this implementation with container/list.
package bytecache

import "container/list"

// entryOverhead is the memory that an entry takes besides its content, in bytes.
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

// New returns a Cache of at most limit bytes.
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

// Add keeps the value, which takes about size bytes, instead of an earlier value of the key. It removes the least recently used values to
// make room. A value that is larger than the cache is not kept.
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

// Size is about how much memory the values take, in bytes.
func (c *Cache[K, V]) Size() int64 { return c.size }
