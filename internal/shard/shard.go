// Package shard selects the objects of a controller when several controllers share a cluster by a label.
// Why two of them never run one Stack twice, also when both have it, is at the beginning of internal/controller/update/once.go.
package shard

import (
	"maps"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// Shard is the part of a cluster that a controller with --watch-label-selector reconciles: the Stacks that the selector matches. Their
// Workspaces and Updates carry the same labels, and the cache of the controller has no others. Nil is the whole cluster.
type Shard struct {
	selector labels.Selector
	// keys are the keys of the labels that the selector uses.
	keys []string
}

// New returns the shard that the selector describes; nil when it matches everything.
func New(selector labels.Selector) *Shard {
	if selector == nil || selector.Empty() {
		return nil
	}
	s := &Shard{selector: selector}
	requirements, _ := selector.Requirements()
	for _, requirement := range requirements {
		if !slices.Contains(s.keys, requirement.Key()) {
			s.keys = append(s.keys, requirement.Key())
		}
	}
	return s
}

// Has reports whether the object belongs to the shard.
func (s *Shard) Has(object metav1.Object) bool {
	return s == nil || s.selector.Matches(labels.Set(object.GetLabels()))
}

// Follow returns own with the labels that decide on the shard set, changed or removed, so that they are those of the other object.
func (s *Shard) Follow(own map[string]string, other metav1.Object) map[string]string {
	if s == nil {
		return own
	}
	followed := maps.Clone(own)
	for _, key := range s.keys {
		value, found := other.GetLabels()[key]
		switch {
		case !found:
			delete(followed, key)
		case followed == nil:
			followed = map[string]string{key: value}
		default:
			followed[key] = value
		}
	}
	return followed
}
