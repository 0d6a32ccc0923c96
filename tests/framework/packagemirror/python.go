package packagemirror

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"html"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path"
	"regexp"
	"strings"
	"time"
)

// The paths below which the server has the pages of the index of Python, and the files that they name.
const (
	pythonPages = "/python/simple/"
	pythonFiles = "/python/files/"
)

// metadata is what the name of a file ends with that describes a package, which is next to the package.
const metadata = ".metadata"

var (
	// defaultIndex finds in pip's help which index it uses.
	defaultIndex = regexp.MustCompile(`--index-url <url>.*?\(default (\S+?)/?\)`)
	// fileLink finds the links of a page of an index, without the digests that follow them.
	fileLink = regexp.MustCompile(`href="([^"#]+)`)
)

// pythonIndex returns the index that the machine's pip uses, without a slash at its end. pip says nowhere else which one that is if it is not
// configured.
func pythonIndex() (string, error) {
	cmd := exec.Command("python3", "-m", "pip", "install", "--help")
	cmd.Env = append(os.Environ(), "COLUMNS=1000")
	help, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("find the index of pip: %w", err)
	}
	found := defaultIndex.FindSubmatch(help)
	if found == nil {
		return "", errors.New("find the index of pip: its help does not have it")
	}
	return string(found[1]), nil
}

// servePythonPage serves the page of a project, whose links lead to this server.
func (m *Mirror) servePythonPage(w http.ResponseWriter, request *http.Request) {
	page, err := m.pythonPage(request.Context(), request.PathValue("project"))
	switch {
	case err != nil:
		http.Error(w, err.Error(), http.StatusBadGateway)
	case page == nil:
		http.NotFound(w, request)
	default:
		w.Header().Set("Content-Type", "text/html")
		_, _ = w.Write(page) // a client that disconnects does not need the rest
	}
}

func (m *Mirror) pythonPage(ctx context.Context, project string) ([]byte, error) {
	index, err := m.index()
	if err != nil {
		return nil, err
	}
	address, err := url.Parse(index + "/" + url.PathEscape(project) + "/")
	if err != nil {
		return nil, fmt.Errorf("find the page of %s: %w", project, err)
	}
	page, err := m.get(ctx, address.String(), "text/html", false)
	if err != nil || page == nil {
		return nil, err
	}
	return fileLink.ReplaceAllFunc(page, func(link []byte) []byte {
		target, err := address.Parse(html.UnescapeString(string(fileLink.FindSubmatch(link)[1])))
		if err != nil {
			return link
		}
		file := path.Base(target.Path)
		m.files.Store(file, target.String())
		return []byte(`href="` + m.URL + pythonFiles + url.PathEscape(file))
	}), nil
}

// servePythonFile serves a file that a page named, or what describes it.
func (m *Mirror) servePythonFile(w http.ResponseWriter, request *http.Request) {
	name, described := strings.CutSuffix(request.PathValue("file"), metadata)
	address, known := m.files.Load(name)
	if !known {
		http.NotFound(w, request)
		return
	}
	target, _ := address.(string)
	if described {
		target += metadata
	}
	content, err := m.get(request.Context(), target, "*/*", true)
	switch {
	case err != nil:
		http.Error(w, err.Error(), http.StatusBadGateway)
	case content == nil:
		http.NotFound(w, request)
	default:
		w.Header().Set("Content-Type", "application/octet-stream")
		http.ServeContent(w, request, "", time.Time{}, bytes.NewReader(content)) // uv asks for ranges
	}
}
