package auth

import (
	"errors"
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"
)

func TestTheCacheForgetsRefusalsBeforeWhoIsAccepted(t *testing.T) {
	g := NewWithT(t)
	c := newCache(3)
	accepted := allow(time.Now().Add(time.Hour))
	c.put(keyOf("good"), accepted)
	for i := range 10 {
		c.put(keyOf(fmt.Sprint("bad ", i)), decision{err: errors.New("no"), until: time.Now().Add(time.Minute)})
	}
	has := func(token string) bool { _, ok := c.get(keyOf(token)); return ok }
	g.Expect(has("good")).To(BeTrue())
	g.Expect(has("bad 9")).To(BeTrue())
	g.Expect(has("bad 0")).To(BeFalse())
	g.Expect(c.refused.Len()).To(Equal(3))

	// Among the accepted tokens, the least recently used one is removed.
	c.put(keyOf("better"), accepted)
	c.put(keyOf("bad 9"), accepted)
	g.Expect(has("good")).To(BeTrue())
	c.put(keyOf("new"), accepted)
	g.Expect(has("better")).To(BeFalse())
	g.Expect(has("bad 9")).To(BeTrue())
	g.Expect(c.accepted.Len()).To(Equal(3))
	g.Expect(c.refused.Len()).To(Equal(2))
}

func TestADecisionLivesNoLongerThanItsToken(t *testing.T) {
	g := NewWithT(t)
	soon := time.Now().Add(time.Minute)
	g.Expect(allow(soon).until).To(Equal(soon))
	g.Expect(allow(time.Now().Add(time.Hour)).until).To(BeTemporally("~", time.Now().Add(allowTime), time.Second))
	g.Expect(allow(time.Time{}).until).To(BeTemporally("~", time.Now().Add(allowTime), time.Second))
}
