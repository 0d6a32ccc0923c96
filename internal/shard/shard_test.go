package shard_test

import (
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/stack-controller/stack-controller/internal/shard"
)

func object(set map[string]string) metav1.Object { return &metav1.ObjectMeta{Labels: set} }

func TestShardHasWhatItsSelectorMatches(t *testing.T) {
	const key = "sharding.fluxcd.io/key"
	for _, test := range []struct {
		selector string
		own      map[string]string // of an object that follows a Stack
		stack    map[string]string
		followed map[string]string
		had, has bool // whether the shard has the object, before and after it followed
	}{
		{"", map[string]string{"a": "b"}, map[string]string{key: "one"}, map[string]string{"a": "b"}, true, true},
		{key + "=one", nil, map[string]string{key: "one", "c": "d"}, map[string]string{key: "one"}, false, true},
		{key + "=one", map[string]string{key: "two", "a": "b"}, map[string]string{key: "one"}, map[string]string{key: "one", "a": "b"}, false, true},
		{key + "=one", map[string]string{key: "one"}, map[string]string{key: "two"}, map[string]string{key: "two"}, true, false},
		{"!" + key, map[string]string{key: "one", "a": "b"}, nil, map[string]string{"a": "b"}, false, true},
		{"!" + key + ",tier in (x,y)", map[string]string{key: "one"}, map[string]string{"tier": "y"}, map[string]string{"tier": "y"}, false, true},
	} {
		t.Run(test.selector, func(t *testing.T) {
			g := NewWithT(t)
			selector, err := labels.Parse(test.selector)
			g.Expect(err).NotTo(HaveOccurred())
			s := shard.New(selector)
			g.Expect(s.Has(object(test.own))).To(Equal(test.had))
			followed := s.Follow(test.own, object(test.stack))
			g.Expect(followed).To(Equal(test.followed))
			g.Expect(s.Has(object(followed))).To(Equal(test.has))
		})
	}
}
