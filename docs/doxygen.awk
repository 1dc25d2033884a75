# Doxygen's view of a header: an example that is indented by three blanks or more is code, a comment behind a member belongs to
# that member, with the lines that continue it, and what stands in a namespace belongs to the header's group (docs/api/groups.dox).
BEGIN {
  while ((getline line < "docs/api/groups.dox") > 0) {
    if (split(line, word, " ") > 4 && word[2] == "@file" && index(ARGV[1], word[3])) group = word[5]
  }
}
ARGV[1] ~ /\.dox$/ { gsub(/ @(ingroup|brief)/, "\n&"); print; next }
/^namespace fleet[a-z_:]* \{$/ && group && !is_open { is_open = 1; print $0 " /** @addtogroup " group " */ /** @{ */"; next }
/^\}  \/\/ namespace fleet/ && is_open { is_open = 0; print "/** @} */ " $0; next }
/^ *\/\/\/   +[^ ]/ { sub(/\/\/\/   /, "///       "); behind = 0; print; next }
/[;,{] +\/\/ / && !/^ *\/\// && !/NOLINT/ { sub(/\/\/ /, "///< "); behind = 1; print; next }
behind && /^ +\/\/ / { sub(/\/\/ /, "///< "); print; next }
{ behind = 0; print }
