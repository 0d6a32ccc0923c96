package update

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/lru"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
)

// maxRecent is how many Secrets RecentOutputs keeps, each of at most maxRecentSize bytes: 2 MiB in all.
const (
	maxRecent     = 128
	maxRecentSize = 16 << 10
)

// RecentOutputs are the small ones of the Secrets with outputs that were just stored. Their Stacks take them from here a moment later,
// instead of reading each of them again.
type RecentOutputs struct{ secrets *lru.Cache }

// NewRecentOutputs returns an empty RecentOutputs.
func NewRecentOutputs() *RecentOutputs { return &RecentOutputs{secrets: lru.New(maxRecent)} }

func (r *RecentOutputs) add(update *autov1alpha1.Update, secret *corev1.Secret) {
	if secret.Size() <= maxRecentSize {
		r.secrets.Add(update.UID, secret)
	}
}

// Take removes and returns the Secret with the outputs of the Update; nil when it is not here.
func (r *RecentOutputs) Take(update *autov1alpha1.Update) *corev1.Secret {
	secret, known := r.secrets.Get(update.UID)
	if !known {
		return nil
	}
	r.secrets.Remove(update.UID)
	return secret.(*corev1.Secret)
}
