package inputs

import (
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/stack-controller/stack-controller/internal/bytecache"
)

const (
	// maxStored bounds the memory of Stored, in bytes.
	maxStored = 4 << 20
	// storedFor is how long Stored keeps anything.
	storedFor = time.Minute
)

// Stored keeps Secrets with the outputs of Stacks for a short time, for all operations that use them: when a Stack has other outputs, a
// thousand Stacks may look at them within seconds. nil keeps nothing.
type Stored struct {
	mu sync.Mutex
	// secrets are forgotten together, so that no value stays longer than storedFor. They are not changed.
	secrets *bytecache.Cache[storedKey, *corev1.Secret]
}

// storedKey has the name besides the UID of the Update, because the status of a Stack can name the Update of another namespace.
type storedKey struct {
	secret types.NamespacedName
	update types.UID
}

// get returns the Secret; nil when it is not kept.
func (s *Stored) get(key storedKey) *corev1.Secret {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.secrets == nil {
		return nil
	}
	secret, _ := s.secrets.Get(key)
	return secret
}

// keep keeps the Secret if its values cannot be changed.
func (s *Stored) keep(key storedKey, secret *corev1.Secret) {
	if s == nil || !ptr.Deref(secret.Immutable, false) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.secrets == nil {
		s.secrets = bytecache.New[storedKey, *corev1.Secret](maxStored)
		time.AfterFunc(storedFor, s.forget)
	}
	s.secrets.Add(key, secret, int64(secret.Size()+len(secret.Data)*KeyCost))
}

func (s *Stored) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.secrets = nil
}
