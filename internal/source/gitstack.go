package source

import (
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/fluxcd/pkg/apis/meta"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/source/git"
)

// gitSourceOf returns the git source that the fields of a Stack describe. Its error is a permanent *Problem that names the field
// that cannot be used.
func gitSourceOf(stack *pulumiv1.Stack) (*autov1alpha1.GitSource, error) {
	spec := &stack.Spec.GitSource
	switch {
	case spec.ProjectRepo == "":
		return nil, invalidSource("spec.projectRepo is missing: it is the URL of the git repository that the other git fields are about")
	case spec.Branch != "" && spec.Commit != "":
		return nil, invalidSource("spec.branch and spec.commit are both set: remove one of them")
	case spec.Branch == "" && spec.Commit == "":
		return nil, invalidSource("neither spec.branch nor spec.commit is set: name the branch to follow, or the commit to run")
	}
	if err := git.CheckURL(strings.TrimSpace(spec.ProjectRepo)); err != nil {
		// Messages of package git have no secrets in them.
		return nil, invalidSource("spec.projectRepo: %s", err)
	}
	source := &autov1alpha1.GitSource{
		URL:               spec.ProjectRepo,
		Ref:               spec.Branch + spec.Commit,
		Dir:               spec.RepoDir,
		Shallow:           spec.Shallow,
		RecurseSubmodules: spec.RecurseSubmodules,
	}
	var problem *Problem
	if source.Auth, problem = gitAuthOf(stack); problem != nil {
		return nil, problem
	}
	return source, nil
}

// gitAuthOf translates spec.gitAuth, or the older spec.gitAuthSecret. If a Stack has credentials of several kinds, the first of these is
// used: SSH key, access token, GitHub App, basic authentication.
func gitAuthOf(stack *pulumiv1.Stack) (*autov1alpha1.GitAuth, *Problem) {
	spec := &stack.Spec.GitSource
	if spec.GitAuth == nil {
		if spec.GitAuthSecret == "" {
			return nil, nil
		}
		return &autov1alpha1.GitAuth{SecretRef: &meta.LocalObjectReference{Name: spec.GitAuthSecret}}, nil
	}
	from := spec.GitAuth
	auth := &autov1alpha1.GitAuth{
		KnownHostsRef:  from.KnownHostsRef,
		CertSecretRef:  from.CertSecretRef,
		ProxySecretRef: from.ProxySecretRef,
	}
	refs := secretRefs{namespace: stack.Namespace}
	switch {
	case from.SSHAuth != nil:
		auth.SSHPrivateKey = refs.selector("sshAuth.sshPrivateKey", &from.SSHAuth.SSHPrivateKey)
		auth.Password = refs.selector("sshAuth.password", from.SSHAuth.Password)
	case from.PersonalAccessToken != nil:
		auth.Token = refs.selector("accessToken", from.PersonalAccessToken)
	case from.GitHubApp != nil:
		auth.GitHubApp = &autov1alpha1.GitHubAppAuth{
			AppID:          refs.selector("githubApp.appID", &from.GitHubApp.AppID),
			InstallationID: refs.selector("githubApp.installationID", &from.GitHubApp.InstallationID),
			PrivateKey:     refs.selector("githubApp.privateKey", &from.GitHubApp.PrivateKey),
		}
	case from.BasicAuth != nil:
		auth.Username = refs.selector("basicAuth.userName", &from.BasicAuth.UserName)
		auth.Password = refs.selector("basicAuth.password", &from.BasicAuth.Password)
	case spec.GitAuthSecret != "":
		auth.SecretRef = &meta.LocalObjectReference{Name: spec.GitAuthSecret}
	}
	if refs.problem != nil {
		return nil, refs.problem
	}
	return auth, nil
}

// secretRefs translates references to Secrets, and keeps the first problem with one.
type secretRefs struct {
	namespace string
	problem   *Problem
}

func (r *secretRefs) selector(field string, ref *pulumiv1.ResourceRef) *corev1.SecretKeySelector {
	if ref == nil {
		return nil
	}
	switch secret := ref.SecretRef; {
	case ref.Type != pulumiv1.ResourceRefSecret:
		r.refuse("spec.gitAuth.%s is of type %.64q: credentials of git have to be in a Secret, with type: Secret", field, ref.Type)
	case secret == nil || secret.Name == "" || secret.Key == "":
		r.refuse("spec.gitAuth.%s.secret needs the name of a Secret and a key in it", field)
	case secret.Namespace != "" && secret.Namespace != r.namespace:
		r.refuse("spec.gitAuth.%s.secret is in namespace %q: a Secret has to be in the namespace of the Stack", field, secret.Namespace)
	default:
		return &corev1.SecretKeySelector{
			Name: secret.Name,
			Key:  secret.Key,
		}
	}
	return nil
}

func (r *secretRefs) refuse(format string, args ...any) {
	if r.problem == nil {
		r.problem = invalidSource(format, args...)
	}
}
