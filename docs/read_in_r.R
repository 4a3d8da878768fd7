# Vectors in R: Rscript read_in_r.R FILE, as written by one of
#   plm-embed export results per-protein.h5 --to uniprot-h5
#   plm-embed export results vectors.tsv --to tsv
# The first needs hdf5r. Debian and Ubuntu: apt-get install r-cran-hdf5r. Elsewhere:
# install.packages("hdf5r"). The second needs R alone, and brings the columns of the index.

of_hdf5 <- function(path) {
  file <- hdf5r::H5File$new(path, mode = "r")
  on.exit(file$close_all())
  t(sapply(names(file), function(id) file[[id]][])) # a row per id, named by it
}

of_table <- function(path) {
  # a line per record: id, the columns of the index, e0, e1, ...; an id such as 007 or NA is text
  records <- read.delim(path, colClasses = c(id = "character"), na.strings = character())
  vectors <- as.matrix(records[grepl("^e[0-9]+$", names(records))])
  rownames(vectors) <- records$id
  vectors
}

path <- commandArgs(trailingOnly = TRUE)[1]
vectors <- if (endsWith(path, ".tsv")) of_table(path) else of_hdf5(path)

unit <- vectors / sqrt(rowSums(vectors^2))
similarity <- unit %*% t(unit) # cosines
print(dim(vectors))
print(round(similarity[1, ], 4))
