package artifact

import (
	"errors"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	. "github.com/onsi/gomega"
)

// controller-runtime recovers panics of reconcilers, but not of these workers: a panic would end the process for all tenants. Here the code
// panics because fields are nil, which stands for any panic that unusual content may cause.
func TestPanicInTheBackgroundIsAnErrorLikeAnother(t *testing.T) {
	g := NewWithT(t)
	store, err := NewStore(Options{Dir: t.TempDir(), Log: logr.Discard()})
	g.Expect(err).NotTo(HaveOccurred())
	store.downloads = nil
	err = store.Fetch(t.Context(), Reference{
		URL: "http://source.invalid/a.tar.gz", Source: "GitRepository/team/app", Namespace: "team", Digest: "sha256:" + strings.Repeat("0", 64),
	})
	var failed *FetchError
	g.Expect(errors.As(err, &failed)).To(BeTrue(), "%v", err)
	g.Expect(failed.Kind).To(Equal(Unavailable))
	g.Expect(failed.Error()).To(ContainSubstring("an internal error, which the log of the controller has"))
	g.Expect((&Contents{store: store}).find(t.Context(), contentKey{}, nil)).To(MatchError(errPanicked))
}
