package operation_test

import (
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/stack-controller/stack-controller/tests/framework/programs"
	"github.com/stack-controller/stack-controller/tests/framework/suite"
)

// Pulumi.yaml can say where a plugin is, relative to itself. `pulumi install` does not look there.
func TestPluginsBesideTheProgramAreUsed(t *testing.T) {
	suite.Long(t, "further places of plugins")
	f := newCreated(t)
	f.project = filepath.Join(f.project, "sub")
	const program = "name: demo\nruntime: yaml\nplugins: {providers: [{name: test, path: ../bin}]}\n" +
		"resources: {one: {type: 'test:index:Sleep', properties: {echo: a}}}\n"
	f.write("Pulumi.yaml", program)
	f.Expect(programs.Put(t.Context(), programs.Provider, filepath.Join(f.project, "..", "bin", programs.Provider))).To(Succeed())
	f.succeed(up)
	f.write("Pulumi.yaml", program+"packages: {}\n")
	f.succeed(up)
	f.Expect(f.processes()).To(ContainElement(HavePrefix("install --no-plugins")))
}
