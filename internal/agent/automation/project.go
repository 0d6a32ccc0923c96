package automation

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"gopkg.in/yaml.v3"
)

// maxProjectSize bounds Pulumi.yaml and the stack's configuration file, in bytes. An inline YAML program can be large.
const maxProjectSize = 16 << 20

// projectFiles are the names under which the CLI looks for a project, in its order.
var projectFiles = []string{"Pulumi.yaml", "Pulumi.yml", "Pulumi.json"}

// project is what we need to know of Pulumi.yaml. Everything else is for the CLI to judge, which may be newer than we are.
type project struct {
	name           string
	runtime        string
	runtimeOptions map[string]any
	// main is the directory of the program, relative to the project; empty for the project itself.
	main           string
	backendURL     string
	stackConfigDir string
	// dir is where pulumi runs, file the name of the project file in it.
	dir, file string
	// document is the whole project file; nil when there is no program.
	document *yaml.Node
}

// loadProject reads the project file of the directory. Unlike the CLI it does not search in the directories above: the
// operation says where the program is.
func loadProject(dir string) (*project, error) {
	for _, name := range projectFiles {
		content, err := readBounded(filepath.Join(dir, name), maxProjectSize)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, projectInvalid("cannot read %s: %s", name, withoutPath(err))
		}
		return parseProject(dir, name, content)
	}
	return nil, projectInvalid("there is no Pulumi.yaml in the directory of the program")
}

func parseProject(dir, name string, content []byte) (*project, error) {
	document, err := parseYAML(content)
	if err != nil {
		return nil, projectInvalid("%s is not valid: %s", name, err)
	}
	if document == nil {
		return nil, projectInvalid("%s is empty", name)
	}
	var fields struct {
		Name           string    `yaml:"name"`
		Runtime        yaml.Node `yaml:"runtime"`
		Main           string    `yaml:"main"`
		StackConfigDir string    `yaml:"stackConfigDir"`
		Backend        struct {
			URL string `yaml:"url"`
		} `yaml:"backend"`
	}
	if err := document.Decode(&fields); err != nil {
		return nil, projectInvalid("%s is not valid: %s", name, err)
	}
	var runtime struct {
		Name    string         `yaml:"name"`
		Options map[string]any `yaml:"options"`
	}
	if fields.Runtime.Decode(&runtime.Name) != nil {
		if err := fields.Runtime.Decode(&runtime); err != nil {
			return nil, projectInvalid("%s is not valid: runtime: %s", name, err)
		}
	}
	if fields.Name == "" {
		return nil, projectInvalid("%s is not valid: it has no name", name)
	}
	if runtime.Name == "" {
		return nil, projectInvalid("%s is not valid: it has no runtime", name)
	}
	return &project{
		name: fields.Name, runtime: runtime.Name, runtimeOptions: runtime.Options, main: fields.Main,
		backendURL: fields.Backend.URL, stackConfigDir: fields.StackConfigDir,
		dir: dir, file: name, document: document,
	}, nil
}

// stackFile is the path of the configuration that came with the source for the stack; there may be none.
func (p *project) stackFile(stack string) string {
	return filepath.Join(p.dir, p.stackFileName(stack))
}

// stackFileName is the path of that file in the directory of the project.
func (p *project) stackFileName(stack string) string {
	return filepath.Join(p.stackConfigDir, "Pulumi."+stack+filepath.Ext(p.file))
}

// parseYAML returns the mapping at the root of the document; nil when the document is empty. JSON is YAML as well.
func parseYAML(content []byte) (*yaml.Node, error) {
	var document yaml.Node
	if err := yaml.Unmarshal(bytes.TrimPrefix(content, []byte("\xef\xbb\xbf")), &document); err != nil {
		return nil, err
	}
	if document.Kind == 0 || len(document.Content) == 0 || document.Content[0].Tag == "!!null" {
		return nil, nil
	}
	if document.Content[0].Kind != yaml.MappingNode {
		return nil, errors.New("it is not a mapping")
	}
	return document.Content[0], nil
}

// readBounded reads a regular file of at most limit bytes.
func readBounded(path string, limit int64) ([]byte, error) {
	// Opening a named pipe would wait for a writer.
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, &fs.PathError{Op: "read", Path: path, Err: errors.New("not a regular file")}
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	content, err := io.ReadAll(io.LimitReader(file, limit+1))
	if err != nil {
		return nil, err
	}
	if int64(len(content)) > limit {
		return nil, &fs.PathError{Op: "read", Path: path, Err: errors.New("the file is too large")}
	}
	return content, nil
}

// withoutPath returns the error of a file operation without the path: where the agent keeps its files tells a user nothing.
func withoutPath(err error) error {
	if inner := (*fs.PathError)(nil); errors.As(err, &inner) {
		return inner.Err
	}
	return err
}
