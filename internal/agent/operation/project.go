package operation

import (
	"bytes"
	"errors"
	"io/fs"
	"path/filepath"

	"gopkg.in/yaml.v3"

	"github.com/stack-controller/stack-controller/internal/agent/config"
	"github.com/stack-controller/stack-controller/internal/file"
)

// projectFiles are the names under which the CLI looks for a project, in its order.
var projectFiles = []string{"Pulumi.yaml", "Pulumi.yml", "Pulumi.json"}

// project is what the agent needs of Pulumi.yaml. The CLI, which may be newer than the agent, checks everything else.
type project struct {
	projectFile
	// runtime is the language, and runtimeOptions are its options in the project.
	runtime        string
	runtimeOptions map[string]any
	// file is the name of the project file; empty without a program.
	file string
}

// projectFile has the fields of Pulumi.yaml that matter here.
type projectFile struct {
	Name           string `yaml:"name"`
	Runtime        any    `yaml:"runtime"`
	Description    any    `yaml:"description,omitempty"`
	Main           string `yaml:"main,omitempty"`
	StackConfigDir string `yaml:"stackConfigDir,omitempty"`
	// Config is the older name of stackConfigDir if it is text; otherwise it declares the configuration, which only the CLI reads.
	Config  any `yaml:"config,omitempty"`
	Backend struct {
		URL string `yaml:"url,omitempty"`
	} `yaml:"backend,omitempty"`
	// Plugins and Packages are what the program needs in addition to its language.
	Plugins  any `yaml:"plugins,omitempty"`
	Packages any `yaml:"packages,omitempty"`
}

// loadProject reads the project file of the directory. Unlike the CLI it does not search in the directories above: the operation says
// where the program is.
func loadProject(dir string) (*project, error) {
	for _, name := range projectFiles {
		content, err := file.Read(filepath.Join(dir, name), config.MaxSize)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, projectInvalid("cannot read %s: %s", name, file.WithoutPath(err))
		}
		return parseProject(name, content)
	}
	return nil, projectInvalid("there is no Pulumi.yaml in the directory of the program")
}

func parseProject(name string, content []byte) (*project, error) {
	var document yaml.Node
	if err := yaml.Unmarshal(bytes.TrimPrefix(content, []byte("\xef\xbb\xbf")), &document); err != nil {
		return nil, projectInvalid("%s is not valid: %s", name, err)
	}
	if len(document.Content) == 0 || document.Content[0].ShortTag() == "!!null" {
		return nil, projectInvalid("%s is empty", name)
	}
	if document.Content[0].Kind != yaml.MappingNode {
		return nil, projectInvalid("%s is not valid: it is not a mapping", name)
	}
	p := &project{file: name}
	if err := document.Decode(&p.projectFile); err != nil {
		return nil, projectInvalid("%s is not valid: %s", name, err)
	}
	switch runtime := p.Runtime.(type) {
	case string:
		p.runtime = runtime
	case map[string]any:
		p.runtime, _ = runtime["name"].(string)
		p.runtimeOptions, _ = runtime["options"].(map[string]any)
	}
	if dir, isDir := p.Config.(string); isDir && p.StackConfigDir == "" {
		p.StackConfigDir = dir // of both, the CLI complains
	}
	if p.Name == "" {
		return nil, projectInvalid("%s is not valid: it has no name", name)
	}
	if p.runtime == "" {
		// From 3.246 on, a project needs none. It has no program then, and nothing to install for it. An older CLI refuses it.
		p.runtime = noRuntime
	}
	return p, nil
}

// noRuntime is the runtime of a project that has none: the one without dependencies.
const noRuntime = "yaml"

// hasProgram reports whether there is a program; without one an operation works from the state.
func (p *project) hasProgram() bool { return p.file != "" }

// stackFile returns the path, relative to the directory of the project, of the stack's configuration file in the source. The file may not
// exist.
func (p *project) stackFile(stack string) string {
	return filepath.Join(p.StackConfigDir, "Pulumi."+stack+filepath.Ext(p.file))
}

// stub returns the part of the project that matters without its program: the backend, and what the CLI writes into the tags of the stack.
func (p *project) stub() ([]byte, error) {
	return yaml.Marshal(projectFile{Name: p.Name, Runtime: p.runtime, Description: p.Description, Backend: p.Backend})
}
