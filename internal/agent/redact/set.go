package redact

import "math/rand/v2"

// hash is a hash of the first bytes of a piece. Two texts with one hash cost nothing but a Mask where there is no secret.
type hash uint64

// newHash returns the hash of an empty text. It is random, so that nobody can choose values whose hashes are alike.
func newHash() hash { return hash(rand.Uint64() | 1) }

// with returns the hash of the text that is one byte longer.
func (h hash) with(b byte) hash {
	h = (h ^ hash(b)) * 0x9e3779b97f4a7c15
	return h ^ h>>32
}

// of returns the hash of the text that is longer by all these bytes.
func (h hash) of(text string) hash {
	for i := range len(text) {
		h = h.with(text[i])
	}
	return h
}

// set is a set of hashes: a hash table with linear probing, at most three quarters full. An entry takes 11 to 22 bytes, half of what a map
// needs. Zero is a free slot; it stands for no text but by chance, and then the set has one.
type set struct {
	slots []hash
	used  int
}

// add adds the hash, and reports whether it is new.
func (s *set) add(h hash) bool {
	if 4*(s.used+1) > 3*len(s.slots) {
		old := s.slots
		s.slots, s.used = make([]hash, max(64, 2*len(old))), 0
		for _, known := range old {
			if known != 0 {
				s.add(known)
			}
		}
	}
	slot := s.slot(max(h, 1))
	if *slot != 0 {
		return false
	}
	*slot = max(h, 1)
	s.used++
	return true
}

func (s *set) has(h hash) bool {
	return s.used > 0 && *s.slot(max(h, 1)) != 0
}

// slot returns where the hash is, or the free slot where it would be.
func (s *set) slot(h hash) *hash {
	last := hash(len(s.slots)) - 1
	for at := h & last; ; at = (at + 1) & last {
		if known := &s.slots[at]; *known == h || *known == 0 {
			return known
		}
	}
}

// filterBits is the size of a filter, in bits, as a power of two: 512 KiB.
const filterBits = 22

// filter is a Bloom filter: it has every hash that was added, and by chance others. With the beginnings of all pieces of 30 KiB of values,
// it has one in ten of the others; with those of a MiB, nearly all.
type filter []uint64

func (f *filter) add(h hash) {
	if *f == nil {
		*f = make(filter, 1<<filterBits/64)
	}
	(*f)[h>>(64-filterBits)/64] |= 1 << (h >> (64 - filterBits) % 64)
}

func (f filter) has(h hash) bool {
	return f[h>>(64-filterBits)/64]&(1<<(h>>(64-filterBits)%64)) != 0
}
