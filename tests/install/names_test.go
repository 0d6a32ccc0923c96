package install_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
)

// defaultRegistry is what the names begin with that nobody has set. It has no host.
const defaultRegistry = "stack-controller"

// ownName is a name of what a release pushes, with what is before it.
var ownName = regexp.MustCompile(`[\w.:/-]*\b` + defaultRegistry + `/(?:stack-controller(?:-agent)?|manifests|charts)\b`)

func TestOneSettingNamesAllOfARelease(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	const version = "v1.2.3"
	dir, err := releaseFiles(t, version, version)
	g.Expect(err).NotTo(HaveOccurred(), dir)

	source := decode(t, read(t, dir, "flux.yaml")).get(t, "OCIRepository", "stack-controller")
	g.Expect(at(t, source, "spec", "url")).To(Equal("oci://" + registry + "manifests"))
	g.Expect(at(t, source, "spec", "ref", "semver")).To(Equal(">=1.2.3"))
	applied := decode(t, read(t, dir, "flux.yaml")).get(t, "Kustomization", "stack-controller")
	path := at(t, applied, "spec", "path").(string)
	g.Expect(filepath.Join(unpack(t, dir), path, "kustomization.yaml")).To(BeARegularFile())
	g.Expect(dryRun(t, flux(t), filepath.Join(dir, "flux.yaml"))).To(Succeed())
}

// Nobody sets anything here: the names are those of the default, as in config, so that one can be replaced by the other.
func TestNamesHaveOneDefaultWithoutAHost(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	names := 0
	for _, dir := range []string{"manager", "chart", "flux", "default"} {
		g.Expect(filepath.WalkDir(inRepository("config", dir), func(path string, entry os.DirEntry, err error) error {
			if err != nil || entry.IsDir() {
				return err
			}
			for _, name := range ownName.FindAllString(read(t, path), -1) {
				name = strings.TrimPrefix(strings.TrimLeft(name, ":/"), "oci://")
				if strings.Contains(name, "github.com/") {
					continue // the repository
				}
				names++
				g.Expect(name).To(HavePrefix(defaultRegistry+"/"), path)
			}
			return nil
		})).To(Succeed())
	}
	g.Expect(names).To(BeNumerically(">", 8))
	g.Expect(read(t, inRepository(".ci", "registry"))).To(ContainSubstring("registry=${IMAGE_REGISTRY:-" + defaultRegistry + "}"))
}
