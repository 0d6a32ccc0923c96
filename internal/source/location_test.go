package source

import (
	"testing"

	. "github.com/onsi/gomega"

	sourcev1 "github.com/fluxcd/source-controller/api/v1"
)

func TestSourceIsBelievedForItsOwnArtifactsOnly(t *testing.T) {
	flux := sourcev1.GroupVersion.Group
	for name, test := range map[string]struct {
		kind, url string
		refused   bool
	}{
		"own":                                {kind: "GitRepository", url: "http://source-controller.flux-system.svc.cluster.local./gitrepository/team/app/0a1b.tar.gz"},
		"own, of a bucket":                   {kind: "Bucket", url: "http://10.0.0.1/bucket/team/app/0a1b.tar.gz"},
		"of another namespace":               {kind: "GitRepository", url: "http://source-controller/gitrepository/victim/app/0a1b.tar.gz", refused: true},
		"of another source":                  {kind: "GitRepository", url: "http://source-controller/gitrepository/team/other/0a1b.tar.gz", refused: true},
		"of another kind":                    {kind: "Bucket", url: "http://source-controller/gitrepository/team/app/0a1b.tar.gz", refused: true},
		"somewhere":                          {kind: "OCIRepository", url: "http://source-controller/anything", refused: true},
		"below its own":                      {kind: "GitRepository", url: "http://x/gitrepository/team/app/../../victim/app/0a1b.tar.gz", refused: true},
		"encoded":                            {kind: "GitRepository", url: "http://x/gitrepository/team/app/..%2f..%2fvictim/0a1b", refused: true},
		"external, anywhere":                 {kind: "ExternalArtifact", url: "https://producer.example.com/0a1b.tar.gz"},
		"external, stored as Flux does":      {kind: "ExternalArtifact", url: "http://source-watcher/externalartifact/team/app/1.tar.gz"},
		"external, of another":               {kind: "ExternalArtifact", url: "http://source-controller/gitrepository/victim/app/0a1b.tar.gz", refused: true},
		"external, of the victim's":          {kind: "ExternalArtifact", url: "http://source-watcher/ExternalArtifact/victim/app/1.tar.gz", refused: true},
		"external, with an empty element":    {kind: "ExternalArtifact", url: "http://source-controller//gitrepository/victim/app/0a1b.tar.gz", refused: true},
		"external, as a directory":           {kind: "ExternalArtifact", url: "http://source-controller/gitrepository/victim/app/0a1b.tar.gz/", refused: true},
		"external, here":                     {kind: "ExternalArtifact", url: "http://source-controller/./gitrepository/victim/app/0a1b.tar.gz", refused: true},
		"external, there and back":           {kind: "ExternalArtifact", url: "http://source-controller/y/%2e%2e/gitrepository/victim/app/0a1b", refused: true},
		"metadata service":                   {kind: "ExternalArtifact", url: "http://169.254.169.254/latest", refused: true},
		"metadata service, own path":         {kind: "GitRepository", url: "http://[::ffff:169.254.169.254]/gitrepository/team/app/x", refused: true},
		"the controller":                     {kind: "ExternalArtifact", url: "http://localhost:8080/metrics", refused: true},
		"the controller, by number":          {kind: "ExternalArtifact", url: "http://127.0.0.1:8080/metrics", refused: true},
		"the controller, by another number":  {kind: "ExternalArtifact", url: "http://2130706433:8080/metrics", refused: true},
		"the controller, in other digits":    {kind: "ExternalArtifact", url: "http://%EF%BC%91%EF%BC%92%EF%BC%97.0.0.1:8080/metrics", refused: true},
		"own, with a query":                  {kind: "GitRepository", url: "http://x/gitrepository/team/app/0a1b?delete", refused: true},
		"external, with a query":             {kind: "ExternalArtifact", url: "https://producer.example.com/0a1b.tar.gz?signature=x"},
		"what is no URL is refused later on": {kind: "GitRepository", url: "%"},
	} {
		t.Run(name, func(t *testing.T) {
			key := fluxKey{Group: flux, Kind: test.kind, Namespace: "team", Name: "app"}
			err := checkLocation(key, test.url)
			if test.refused {
				NewWithT(t).Expect(err).To(MatchError(ContainSubstring("is not where its artifacts are published")))
				return
			}
			NewWithT(t).Expect(err).NotTo(HaveOccurred())
		})
	}
}
